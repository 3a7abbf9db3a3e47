// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCertificatesNamePoolRoleAndHolder(t *testing.T) {
	directory := t.TempDir()
	if err := writeCertificates(directory, poolUID, map[string]string{"node": "local-0", "client": "shard-0"}); err != nil {
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
	for role, name := range map[string]string{"node": "local-0", "client": "shard-0"} {
		pair, err := tls.LoadX509KeyPair(filepath.Join(directory, role+".crt"), filepath.Join(directory, role+".key"))
		if err != nil {
			t.Fatal(err)
		}
		for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
			if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
				t.Errorf("%s: %v", role, err)
			}
		}
		if want := "farpool://" + poolUID + "/" + role + "/" + name; len(pair.Leaf.URIs) != 1 || pair.Leaf.URIs[0].String() != want {
			t.Errorf("got %v, want %s", pair.Leaf.URIs, want)
		}
	}
}

func TestFreeAddressLeavesATakenPortAlone(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	taken := listener.Addr().(*net.TCPAddr).Port
	address, err := freeAddress(taken)
	if err != nil || address == listener.Addr().String() {
		t.Errorf("got %s, %v", address, err)
	}
}

func TestReadyNamesTheDaemonThatEnded(t *testing.T) {
	var said bytes.Buffer
	d, err := start("memory node", &lines{out: &said}, "sh", "-c", "echo no memory; exit 4")
	if err != nil {
		t.Fatal(err)
	}
	<-d.ended
	address, err := freeAddress(0)
	if err != nil {
		t.Fatal(err)
	}
	err = ready(context.Background(), address, d)
	if err == nil || !strings.Contains(err.Error(), "memory node ended before it served: exit status 4") {
		t.Errorf("got %v", err)
	}
}
