// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package mock

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

const publishLog = "publish.log"

// Operations in the publish log.
const (
	OpPublish   = "publish"
	OpUnpublish = "unpublish"
)

// PublishRecord is one line of the publish log, publish.log in the state
// directory: who got a volume, or no longer has it. A publish is written before
// the volume is mounted and an unpublish after it is unmounted, so that no
// moment of use is missing. The same publish may be written twice.
type PublishRecord struct {
	Time time.Time `json:"time"`
	// Op is OpPublish or OpUnpublish.
	Op         string `json:"op"`
	VolumeID   string `json:"volumeID"`
	Node       string `json:"node"`
	TargetPath string `json:"targetPath"`
	Pod
}

// Pod is who uses a volume. It is known where the CSIDriver object has
// podInfoOnMount: true, else empty.
type Pod struct {
	Namespace string `json:"podNamespace,omitempty"`
	Name      string `json:"podName,omitempty"`
	UID       string `json:"podUID,omitempty"`
}

// Keys that the kubelet adds to the volume context of NodePublishVolume.
const (
	contextPodNamespace = "csi.storage.k8s.io/pod.namespace"
	contextPodName      = "csi.storage.k8s.io/pod.name"
	contextPodUID       = "csi.storage.k8s.io/pod.uid"
)

func podOf(volumeContext map[string]string) Pod {
	return Pod{
		Namespace: volumeContext[contextPodNamespace],
		Name:      volumeContext[contextPodName],
		UID:       volumeContext[contextPodUID],
	}
}

func (d *Driver) logUse(op string, v *volume, u use) error {
	line, err := json.Marshal(PublishRecord{
		Time: time.Now(), Op: op, VolumeID: v.ID, Node: u.Node, TargetPath: u.Path, Pod: u.Pod,
	})
	if err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(d.state.dir, publishLog), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(append(line, '\n'))
	return errors.Join(err, file.Close())
}

// ReadPublishLog reads the log in a state directory, also while a driver writes
// it. Where nothing was published yet it is empty.
func ReadPublishLog(stateDir string) ([]PublishRecord, error) {
	path := filepath.Join(stateDir, publishLog)
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var records []PublishRecord
	for number := 1; ; number++ {
		line, rest, complete := bytes.Cut(content, []byte("\n"))
		if !complete {
			return records, nil // a line that is just being written
		}
		var record PublishRecord
		if err := json.Unmarshal(line, &record); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, number, err)
		}
		records, content = append(records, record), rest
	}
}

// Shared is a moment at which a volume was published for pods of two namespaces.
type Shared struct {
	First, Second PublishRecord
}

func (s Shared) String() string {
	return fmt.Sprintf("volume %s was published for pod %s/%s at %s while it still was for pod %s/%s since %s",
		s.First.VolumeID,
		s.Second.Namespace, s.Second.Name, s.Second.Time.Format(time.RFC3339Nano),
		s.First.Namespace, s.First.Name, s.First.Time.Format(time.RFC3339Nano))
}

// FindShared returns every such moment in a log. Records without a namespace
// count as of one namespace of their own.
func FindShared(records []PublishRecord) []Shared {
	type place struct{ volumeID, node, targetPath string }
	published := map[place]PublishRecord{}
	var found []Shared
	for _, record := range records {
		here := place{record.VolumeID, record.Node, record.TargetPath}
		if record.Op == OpUnpublish {
			delete(published, here)
			continue
		}
		for there, other := range published {
			if there.volumeID == here.volumeID && there != here && other.Namespace != record.Namespace {
				found = append(found, Shared{First: other, Second: record})
			}
		}
		published[here] = record
	}
	return found
}
