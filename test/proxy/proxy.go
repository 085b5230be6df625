// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

// Package proxy puts a test between a client and the API server. The test sees
// every call before it is applied and after, and decides what the client gets to
// know. The client is the real program and knows nothing of it.
package proxy

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/cert"
)

// Call is one call of the client, in the words of RBAC.
type Call struct {
	Verb string
	// Resource is plural, with a subresource as in "persistentvolumes/status".
	// It is empty where the call is not about a resource.
	Resource string
	// Namespace and Name are empty where the call is about more than one.
	Namespace, Name string
}

// Writes says whether the call can change something.
func (c Call) Writes() bool { return !sets.New("get", "list", "watch").Has(c.Verb) }

// Handler is told of a call that waits. It may call forward, once, which has the
// API server apply the call and returns when that has answered: a write is
// applied then, a watch begins. What the handler returns decides the client's
// answer: nil is the API server's, an APIStatus that status, and any other error
// none at all, the connection is cut.
//
// Handlers run at the same time for calls made at the same time.
type Handler func(call Call, forward func() error) error

// ErrCut cuts the client's connection when a Handler returns it.
var ErrCut = errors.New("connection cut")

// Proxy serves one client. Without a Handler it passes everything on.
type Proxy struct {
	upstream  *url.URL
	transport http.RoundTripper
	server    *http.Server
	url       string
	authority []byte // PEM
	handler   atomic.Pointer[Handler]
}

// Start starts a proxy to the API server of config, of which it uses the address
// and the certificate authority: clients bring credentials of their own.
func Start(config *rest.Config) (*Proxy, error) {
	upstream, err := url.Parse(config.Host)
	if err != nil {
		return nil, err
	}
	transport, err := rest.TransportFor(rest.AnonymousClientConfig(config))
	if err != nil {
		return nil, err
	}
	// Clients send their tokens only where it is encrypted.
	certificate, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", nil, nil)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{upstream: upstream, transport: transport, url: "https://" + listener.Addr().String(), authority: certificate}
	p.server = &http.Server{
		Handler:           http.HandlerFunc(p.serve),
		ReadHeaderTimeout: 10 * time.Second,
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13},
		// Of a client that was killed it says that a handshake failed.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	go func() { _ = p.server.ServeTLS(listener, "", "") }() // ends with Close
	return p, nil
}

// Close cuts all connections.
func (p *Proxy) Close() { _ = p.server.Close() }

// Handle has handler decide about the calls that arrive from now on; nil passes
// them on.
func (p *Proxy) Handle(handler Handler) {
	if handler == nil {
		p.handler.Store(nil)
		return
	}
	p.handler.Store(&handler)
}

// Kubeconfig writes a copy of a kubeconfig file that goes through the proxy into
// dir and returns its path.
func (p *Proxy) Kubeconfig(original, dir string) (string, error) {
	config, err := clientcmd.LoadFromFile(original)
	if err != nil {
		return "", err
	}
	for _, c := range config.Clusters {
		c.Server, c.CertificateAuthorityData = p.url, p.authority
	}
	path := filepath.Join(dir, "kubeconfig")
	return path, clientcmd.WriteToFile(*config, path)
}

var requestInfo = request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}

func callOf(r *http.Request) (Call, error) {
	info, err := requestInfo.NewRequestInfo(r)
	if err != nil {
		return Call{}, err
	}
	call := Call{Verb: info.Verb, Resource: info.Resource, Namespace: info.Namespace, Name: info.Name}
	if info.Subresource != "" {
		call.Resource += "/" + info.Subresource
	}
	return call, nil
}

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	call, err := callOf(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var answer *http.Response
	forward := func() error {
		out := r.Clone(r.Context())
		out.RequestURI = ""
		out.URL.Scheme, out.URL.Host, out.Host = p.upstream.Scheme, p.upstream.Host, p.upstream.Host
		var err error
		answer, err = p.transport.RoundTrip(out)
		return err
	}
	if handler := p.handler.Load(); handler != nil {
		err = (*handler)(call, forward)
	} else {
		err = forward()
	}
	if answer != nil {
		defer answer.Body.Close()
	}
	var status apierrors.APIStatus
	switch {
	case errors.As(err, &status):
		refuse(w, status.Status())
	case err != nil || answer == nil:
		panic(http.ErrAbortHandler) // cuts the connection
	default:
		pass(w, answer)
	}
}

func refuse(w http.ResponseWriter, status metav1.Status) {
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(status.Code))
	_ = json.NewEncoder(w).Encode(status) // the client may be gone
}

// pass gives the client what the API server answers, as it comes.
func pass(w http.ResponseWriter, answer *http.Response) {
	maps.Copy(w.Header(), answer.Header)
	w.WriteHeader(answer.StatusCode)
	flushed := &flusher{w, http.NewResponseController(w)}
	if _, err := io.Copy(flushed, answer.Body); err != nil {
		panic(http.ErrAbortHandler) // so that the client does not take it for the end
	}
}

type flusher struct {
	io.Writer
	control *http.ResponseController
}

func (f *flusher) Write(b []byte) (int, error) {
	n, err := f.Writer.Write(b)
	if err != nil {
		return n, err
	}
	if err := f.control.Flush(); err != nil {
		return n, fmt.Errorf("flushing: %w", err)
	}
	return n, nil
}
