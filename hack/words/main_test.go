// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// startRedis runs a redis-server of this machine: the program speaks to whatever speaks Redis.
func startRedis(t *testing.T) *redis.Client {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	server := exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", t.TempDir())
	if err := server.Start(); err != nil {
		t.Fatalf("%v; run `make deps`", err)
	}
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	client := connect("127.0.0.1:"+port, "", 3)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func TestEveryWordComesBackAndALostOneIsNoticed(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client := startRedis(t)
	var words []string
	for i := range 3*batch + 7 {
		words = append(words, fmt.Sprintf("word-%d", i))
	}
	if err := load(ctx, client, words, 3); err != nil {
		t.Fatal(err)
	}
	if size := client.DBSize(ctx).Val(); size != int64(len(words)) {
		t.Fatalf("%d keys of %d words", size, len(words))
	}
	if err := verify(ctx, client, words, 3); err != nil {
		t.Fatal(err)
	}
	client.Del(ctx, words[len(words)-1])
	client.Set(ctx, words[0], "other", 0)
	if err := verify(ctx, client, words, 3); err == nil || !strings.HasPrefix(err.Error(), "2 of 1507 words") {
		t.Errorf("a lost and a changed word gave %v", err)
	}
}

func TestReadSkipsRepeatsAndEmptyLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "list")
	if err := os.WriteFile(path, []byte("a\n\nzebra\na\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	words, err := read(path)
	if err != nil || strings.Join(words, " ") != "a zebra" {
		t.Errorf("got %v, %v", words, err)
	}
}

func TestValuesFollowFromTheWordAlone(t *testing.T) {
	for word, want := range map[string]string{"zebra": "zebra:676cb75018edccf1", "zebu": "zebu:178ad192ba6f468de6ab1534a0fa7ac2ee9ff5cca711fb2a"} {
		if got := value(word); got != want {
			t.Errorf("%s: got %s, want %s", word, got, want)
		}
	}
}
