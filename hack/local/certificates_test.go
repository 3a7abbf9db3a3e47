// SPDX-License-Identifier: Apache-2.0

package local

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
)

func TestCertificatesNamePoolRoleAndHolder(t *testing.T) {
	directory := t.TempDir()
	holders := []Holder{{"node", "local-0"}, {"client", "shard-0"}, {"client", "shard-1"}}
	if err := WriteCertificates(directory, PoolUID, holders); err != nil {
		t.Fatal(err)
	}
	authority, err := os.ReadFile(filepath.Join(directory, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		t.Fatal("ca.crt holds no certificate")
	}
	for _, holder := range holders {
		file := filepath.Join(directory, holder.Role+"-"+holder.Name)
		pair, err := tls.LoadX509KeyPair(file+".crt", file+".key")
		if err != nil {
			t.Fatal(err)
		}
		for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
			if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
				t.Errorf("%v: %v", holder, err)
			}
		}
		if want := "farpool://" + PoolUID + "/" + holder.Role + "/" + holder.Name; len(pair.Leaf.URIs) != 1 || pair.Leaf.URIs[0].String() != want {
			t.Errorf("got %v, want %s", pair.Leaf.URIs, want)
		}
	}
}
