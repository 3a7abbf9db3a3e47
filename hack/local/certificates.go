// SPDX-License-Identifier: Apache-2.0

// Package local is what programs share that run the data plane as processes of one machine.
package local

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

// PoolUID is the pool of processes that no operator has made.
const PoolUID = "00000000-0000-4000-8000-00000000f001"

// Holder is whom a certificate names.
type Holder struct{ Role, Name string }

// WriteCertificates makes a CA whose key is never written, and a certificate for each holder: <role>-<name>.crt and <role>-<name>.key
// beside ca.crt.
func WriteCertificates(directory, pool string, holders []Holder) error {
	now := time.Now()
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "farpool local CA"},
		NotBefore: now.Add(-time.Minute), NotAfter: now.Add(30 * 24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	signed, err := x509.CreateCertificate(rand.Reader, authority, authority, &authorityKey.PublicKey, authorityKey)
	if err != nil {
		return err
	}
	if err := writePEM(filepath.Join(directory, "ca.crt"), "CERTIFICATE", signed); err != nil {
		return err
	}
	serial := int64(1)
	for _, holder := range holders {
		serial++
		leaf := &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: holder.Name},
			NotBefore: authority.NotBefore, NotAfter: authority.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			URIs:        []*url.URL{{Scheme: "farpool", Host: pool, Path: "/" + holder.Role + "/" + holder.Name}},
		}
		file := filepath.Join(directory, holder.Role+"-"+holder.Name)
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return err
		}
		signed, err := x509.CreateCertificate(rand.Reader, leaf, authority, &key.PublicKey, authorityKey)
		if err != nil {
			return err
		}
		private, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return err
		}
		if err := writePEM(file+".crt", "CERTIFICATE", signed); err != nil {
			return err
		}
		if err := writePEM(file+".key", "PRIVATE KEY", private); err != nil {
			return err
		}
	}
	return nil
}

func writePEM(path, kind string, content []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600)
}
