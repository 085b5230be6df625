// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// WriteVerbs are the verbs of requests that can change something.
var WriteVerbs = []string{"create", "update", "patch", "delete", "deletecollection"}

// AuditFilter selects events of the API server's audit log. An empty field
// selects every event.
type AuditFilter struct {
	// Since leaves out what was logged before a mark, see AuditMark.
	Since AuditMark
	User  string
	Verbs []string
	// Resource is plural, with a subresource as in "persistentvolumes/status".
	// Without one the requests for the object itself are selected.
	Resource  string
	Namespace string
	Name      string
}

// auditStart is how every line of the log starts.
var auditStart = []byte(`{"kind":"Event","apiVersion":"audit.k8s.io/v1"`)

// AuditMark is a position in the audit log.
type AuditMark int64

// AuditMark returns the end of the audit log.
func (c *Cluster) AuditMark() (AuditMark, error) {
	info, err := os.Stat(c.path("audit.log"))
	if err != nil {
		return 0, err
	}
	return AuditMark(info.Size()), nil
}

// Audit returns the requests that the API server has answered, in the order of
// its answers, whatever the answer was. A watch is among them once it has
// ended. ObjectRef and ResponseStatus are never nil.
//
// What a request wrote can be seen by watching a moment before the answer: the
// request that a wait was for may be missing directly after the wait.
//
// RequestObject and ResponseObject are there for writes to volumes, claims,
// snapshots, CSIDrivers, VolumeAttachments and transfer objects.
func (c *Cluster) Audit(filter AuditFilter) ([]auditv1.Event, error) {
	file, err := os.Open(c.path("audit.log"))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if _, err := file.Seek(int64(filter.Since), io.SeekStart); err != nil {
		return nil, err
	}
	var events []auditv1.Event
	lines := bufio.NewReaderSize(file, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			// What is left has no end yet: it is still being written.
			return events, nil
		}
		if err != nil {
			return nil, fmt.Errorf("audit log: %w", err)
		}
		// The line before may lack its end, if the API server was killed.
		line = line[max(0, bytes.LastIndex(line, auditStart)):]
		event := auditv1.Event{ObjectRef: &auditv1.ObjectReference{}, ResponseStatus: &metav1.Status{}}
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("audit log: %w: %s", err, line)
		}
		if filter.selects(&event) {
			events = append(events, event)
		}
	}
}

func (f *AuditFilter) selects(e *auditv1.Event) bool {
	resource := e.ObjectRef.Resource
	if e.ObjectRef.Subresource != "" {
		resource += "/" + e.ObjectRef.Subresource
	}
	return (f.User == "" || f.User == e.User.Username) &&
		(len(f.Verbs) == 0 || slices.Contains(f.Verbs, e.Verb)) &&
		(f.Resource == "" || f.Resource == resource) &&
		(f.Namespace == "" || f.Namespace == e.ObjectRef.Namespace) &&
		(f.Name == "" || f.Name == e.ObjectRef.Name)
}
