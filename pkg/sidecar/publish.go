// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"encoding/json"
	"strconv"
	"strings"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/driver"
)

// publishing shows on the CSIDriver object what the driver can do: when this
// process starts or the object is made, and then with every resync. A change by
// somebody else is not answered at once, so that an operator that wants the
// object to be as it left it is not fought.
func (c *Controller) publishing() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: c.publish,
		UpdateFunc: func(before, after any) {
			if before.(*storagev1.CSIDriver).ResourceVersion == after.(*storagev1.CSIDriver).ResourceVersion {
				c.publish(after)
			}
		},
	}
}

// publish only tells people: a failure stops no transfer.
func (c *Controller) publish(o any) {
	object := o.(*storagev1.CSIDriver)
	patch := published(object, c.settings.Driver)
	if patch == nil {
		return
	}
	if _, err := c.storage.CSIDrivers().Patch(c.base, object.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		klog.FromContext(c.base).Error(err, "What the driver can do is not shown on its CSIDriver object; trying again with the next resync", "driver", object.Name)
	}
}

// published is the merge patch after which a CSIDriver object says what the
// driver can do, nil where it does.
func published(object *storagev1.CSIDriver, info driver.Info) []byte {
	var linkage string
	if info.Advertised {
		linkage = string(info.Linkage)
	}
	var calls []string
	if info.Validate {
		calls = append(calls, "ValidateVolume")
	}
	if info.SetOwner {
		calls = append(calls, "SetOwner")
	}
	annotations := map[string]any{}
	for key, value := range map[string]string{
		v1alpha1.AnnotationCapable:         strconv.FormatBool(info.Advertised),
		v1alpha1.AnnotationSnapshotLinkage: linkage,
		v1alpha1.AnnotationDriverCalls:     strings.Join(calls, ","),
	} {
		switch is, there := object.Annotations[key]; {
		case value == "" && there:
			annotations[key] = nil
		case value != is:
			annotations[key] = value
		}
	}
	if len(annotations) == 0 {
		return nil
	}
	// A map of strings and nils can always be encoded.
	patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{"uid": object.UID, "annotations": annotations}})
	return patch
}
