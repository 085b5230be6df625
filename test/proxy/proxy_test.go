// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// TestHandler: the client gets what the handler decides, and what it has not
// forwarded never arrives.
func TestHandler(t *testing.T) {
	var arrived atomic.Int32
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived.Add(1)
		if r.Header.Get("Authorization") != "Bearer token" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"apiVersion":"v1","kind":"PersistentVolume","metadata":{"name":"answered"}}`)
	}))
	defer server.Close()
	p, client := connect(t, server)
	defer p.Close()

	want := Call{Verb: "patch", Resource: "persistentvolumes/status", Name: "pv"}
	conflict := apierrors.NewConflict(corev1.Resource("persistentvolumes"), "pv", errors.New("injected"))
	for name, tc := range map[string]struct {
		handler Handler
		arrives int32
		check   func(*corev1.PersistentVolume, error) bool
	}{
		"none": {nil, 1, func(pv *corev1.PersistentVolume, err error) bool { return err == nil && pv.Name == "answered" }},
		"forwarded": {
			func(c Call, forward func() error) error {
				if c != want || !c.Writes() {
					t.Errorf("the call is %+v", c)
				}
				return forward()
			},
			1, func(pv *corev1.PersistentVolume, err error) bool { return err == nil && pv.Name == "answered" },
		},
		"refused": {
			func(Call, func() error) error { return conflict },
			0, func(_ *corev1.PersistentVolume, err error) bool { return apierrors.IsConflict(err) },
		},
		"applied and refused": {
			func(_ Call, forward func() error) error { return errors.Join(forward(), conflict) },
			1, func(_ *corev1.PersistentVolume, err error) bool { return apierrors.IsConflict(err) },
		},
		"cut": {
			func(Call, func() error) error { return ErrCut },
			0, func(_ *corev1.PersistentVolume, err error) bool {
				var status apierrors.APIStatus
				return err != nil && !errors.As(err, &status)
			},
		},
	} {
		arrived.Store(0)
		p.Handle(tc.handler)
		pv, err := client.CoreV1().PersistentVolumes().Patch(t.Context(), "pv", types.MergePatchType, []byte("{}"), metav1.PatchOptions{}, "status")
		if !tc.check(pv, err) || arrived.Load() != tc.arrives {
			t.Errorf("%s: the client got %v, %v; %d calls arrived", name, pv, err, arrived.Load())
		}
	}
}

// connect makes a proxy to a server and a client with a kubeconfig for it.
func connect(t *testing.T, server *httptest.Server) (*Proxy, kubernetes.Interface) {
	t.Helper()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	p, err := Start(&rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: ca}})
	if err != nil {
		t.Fatal(err)
	}
	original := filepath.Join(t.TempDir(), "original")
	if err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: server.URL, CertificateAuthorityData: ca}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": {Token: "token"}},
		Contexts:       map[string]*clientcmdapi.Context{"c": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "c",
	}, original); err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := p.Kubeconfig(original, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return p, client
}
