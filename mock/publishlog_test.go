// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package mock_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/csi-transfer/csi-transfer/mock"
)

func TestPublishLog(t *testing.T) {
	f := startNode(t, mock.Config{})
	if records := must(mock.ReadPublishLog(f.config.StateDir))(t); len(records) > 0 {
		t.Fatalf("the log starts with %v", records)
	}
	id := f.volume("volume", manyWriters, nil)
	staging := f.stage(id, manyWriters)
	targets := map[string]string{}
	for _, namespace := range []string{"prod", "dev"} {
		targets[namespace] = filepath.Join(t.TempDir(), namespace)
		request := publishRequest(id, staging, targets[namespace], manyWriters)
		request.VolumeContext = map[string]string{
			"csi.storage.k8s.io/pod.namespace": namespace,
			"csi.storage.k8s.io/pod.name":      "pod",
			"csi.storage.k8s.io/pod.uid":       namespace + "-uid",
		}
		for range 2 {
			if _, err := f.NodePublishVolume(f.ctx, request); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := f.unpublish(id, targets["prod"]); err != nil {
		t.Fatal(err)
	}
	// A line that is just being written.
	log, err := os.OpenFile(filepath.Join(f.config.StateDir, "publish.log"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if _, err := log.WriteString(`{"op":`); err != nil {
		t.Fatal(err)
	}

	records := must(mock.ReadPublishLog(f.config.StateDir))(t)
	prod := mock.PublishRecord{Op: mock.OpPublish, VolumeID: id, Node: nodeID, TargetPath: targets["prod"],
		Pod: mock.Pod{Namespace: "prod", Name: "pod", UID: "prod-uid"}}
	dev := mock.PublishRecord{Op: mock.OpPublish, VolumeID: id, Node: nodeID, TargetPath: targets["dev"],
		Pod: mock.Pod{Namespace: "dev", Name: "pod", UID: "dev-uid"}}
	gone := prod
	gone.Op = mock.OpUnpublish
	want := []mock.PublishRecord{prod, dev, gone}
	for i := range records {
		if i < len(want) {
			want[i].Time = records[i].Time
		}
		if records[i].Time.IsZero() || i >= len(want) || records[i] != want[i] {
			t.Errorf("record %d is %+v", i, records[i])
		}
	}
	if len(records) != len(want) {
		t.Errorf("got %d records, want %d", len(records), len(want))
	}
	shared := mock.FindShared(records)
	if len(shared) != 1 {
		t.Fatalf("got %v, want the one moment at which the volume was shared", shared)
	}
	for _, word := range []string{id, "prod/pod", "dev/pod"} {
		if !strings.Contains(shared[0].String(), word) {
			t.Errorf("%q does not mention %s", shared[0], word)
		}
	}
}

func TestFindShared(t *testing.T) {
	record := func(op, volume, target, namespace string) mock.PublishRecord {
		return mock.PublishRecord{Time: time.Now(), Op: op, VolumeID: volume, TargetPath: target, Pod: mock.Pod{Namespace: namespace}}
	}
	for name, test := range map[string]struct {
		records []mock.PublishRecord
		shared  int
	}{
		"one after the other": {[]mock.PublishRecord{
			record(mock.OpPublish, "v", "a", "prod"), record(mock.OpUnpublish, "v", "a", "prod"), record(mock.OpPublish, "v", "b", "dev"),
		}, 0},
		"two pods of one namespace": {[]mock.PublishRecord{record(mock.OpPublish, "v", "a", "prod"), record(mock.OpPublish, "v", "b", "prod")}, 0},
		"two volumes":               {[]mock.PublishRecord{record(mock.OpPublish, "v", "a", "prod"), record(mock.OpPublish, "w", "b", "dev")}, 0},
		"twice the same":            {[]mock.PublishRecord{record(mock.OpPublish, "v", "a", "prod"), record(mock.OpPublish, "v", "a", "prod")}, 0},
		"together":                  {[]mock.PublishRecord{record(mock.OpPublish, "v", "a", "prod"), record(mock.OpPublish, "v", "b", "dev")}, 1},
		"one of two pods left": {[]mock.PublishRecord{
			record(mock.OpPublish, "v", "a", "prod"), record(mock.OpPublish, "v", "b", "prod"),
			record(mock.OpUnpublish, "v", "a", "prod"), record(mock.OpPublish, "v", "c", "dev"),
		}, 1},
		"a namespace unknown": {[]mock.PublishRecord{record(mock.OpPublish, "v", "a", ""), record(mock.OpPublish, "v", "b", "dev")}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			if shared := mock.FindShared(test.records); len(shared) != test.shared {
				t.Errorf("got %v, want %d", shared, test.shared)
			}
		})
	}
}
