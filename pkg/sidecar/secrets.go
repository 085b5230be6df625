// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
)

// secretsReader reads what a call to the driver about a volume takes as secrets.
type secretsReader func(context.Context, *corev1.PersistentVolume) (map[string]string, error)

// secretsOf reads the Secret that the volume's class names, anew each time: it
// may have been changed because the driver did not like it. A volume whose class
// is gone has none.
func (c *Controller) secretsOf(ctx context.Context, pv *corev1.PersistentVolume) (map[string]string, error) {
	class := get[storagev1.StorageClass](overlay{informer: c.classes}, types.NamespacedName{Name: pv.Spec.StorageClassName})
	if class == nil {
		return nil, nil
	}
	namespace, name := class.Annotations[v1alpha1.AnnotationSecretNamespace], class.Annotations[v1alpha1.AnnotationSecretName]
	if namespace == "" && name == "" {
		return nil, nil
	}
	if namespace == "" || name == "" {
		return nil, fmt.Errorf("StorageClass %s has only one of the annotations %s and %s; set both, or none",
			class.Name, v1alpha1.AnnotationSecretNamespace, v1alpha1.AnnotationSecretName)
	}
	secret, err := c.core.Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading Secret %s/%s, which StorageClass %s names: %w", namespace, name, class.Name, err)
	}
	secrets := map[string]string{}
	for key, value := range secret.Data {
		secrets[key] = string(value)
	}
	return secrets, nil
}
