// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// authority issues the certificates of one cluster: the API server's and those
// that its users authenticate with.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// keyPair is a certificate and its private key, PEM-encoded.
type keyPair struct{ cert, key []byte }

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	ca, err := cert.NewSelfSignedCACert(cert.Config{CommonName: "test-cluster"}, key)
	if err != nil {
		return nil, err
	}
	return &authority{ca, key}, nil
}

func (a *authority) pem() []byte { return encodeCert(a.cert.Raw) }

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: der})
}

// server issues a certificate for a server on the loopback address.
func (a *authority) server() (keyPair, error) {
	return a.issue(x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		DNSNames:    []string{"localhost"},
	})
}

// user issues a certificate that the API server takes as user in groups.
func (a *authority) user(user string, groups []string) (keyPair, error) {
	return a.issue(x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

func (a *authority) issue(template x509.Certificate) (keyPair, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 64))
	if err != nil {
		return keyPair{}, err
	}
	template.SerialNumber = serial
	template.NotBefore = a.cert.NotBefore
	template.NotAfter = time.Now().AddDate(1, 0, 0)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return keyPair{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, a.cert, key.Public(), a.key)
	if err != nil {
		return keyPair{}, err
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return keyPair{}, err
	}
	return keyPair{encodeCert(der), keyPEM}, nil
}

func (p keyPair) write(certFile, keyFile string) error {
	if err := os.WriteFile(certFile, p.cert, 0o600); err != nil {
		return err
	}
	return os.WriteFile(keyFile, p.key, 0o600)
}
