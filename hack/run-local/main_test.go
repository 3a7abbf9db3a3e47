// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"net"
	"strings"
	"testing"
)

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
