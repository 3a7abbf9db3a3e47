// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// zombie stands between writers and a store as a compute shard would. Once it is stopped it forwards nothing; when it goes on, each caller
// loses its connection, and what they had sent is written all the same, or not.
type zombie struct {
	store string
	lands bool
	mutex sync.Mutex
	goOn  chan struct{} // closed: it runs
	held  atomic.Int64  // requests
}

// stop returns when every writer waits for an answer.
func (z *zombie) stop(ctx context.Context) error {
	z.mutex.Lock()
	z.goOn = make(chan struct{})
	z.mutex.Unlock()
	return Eventually(ctx, Patience, func() error {
		if z.held.Load() < Bursts {
			return errors.New("a writer has no request under way")
		}
		return nil
	})
}

func (z *zombie) running() <-chan struct{} {
	z.mutex.Lock()
	defer z.mutex.Unlock()
	return z.goOn
}

func (z *zombie) serve(listener net.Listener) {
	for {
		caller, err := listener.Accept()
		if err != nil {
			return
		}
		go z.forward(caller)
	}
}

func (z *zombie) forward(caller net.Conn) {
	defer func() { _ = caller.Close() }()
	store, err := net.Dial("unix", z.store)
	if err != nil {
		return
	}
	defer func() { _ = store.Close() }()
	var late atomic.Bool
	answered := make(chan struct{})
	go func() {
		buffer := make([]byte, 1<<16)
		for {
			n, err := store.Read(buffer)
			switch {
			case err != nil:
				return
			case late.Load():
				close(answered)
				return
			}
			if _, err := caller.Write(buffer[:n]); err != nil {
				return
			}
		}
	}()
	buffer := make([]byte, 1<<16)
	for {
		n, err := caller.Read(buffer)
		if err != nil {
			return
		}
		select {
		case <-z.running():
		default:
			z.held.Add(1)
			<-z.running()
			if late.Store(true); z.lands {
				if _, err := store.Write(buffer[:n]); err == nil {
					<-answered
				}
			}
			return
		}
		if _, err := store.Write(buffer[:n]); err != nil {
			return
		}
	}
}

func TestAStopIsJudged(t *testing.T) {
	for name, of := range map[string]struct{ lands, killed bool }{
		"nothing lands late":                    {},
		"a write lands late":                    {lands: true},
		"it is killed while it stands still":    {killed: true},
		"it is killed after a write has landed": {lands: true, killed: true},
	} {
		t.Run(name, func(t *testing.T) {
			lands := of.lands
			target := redisTarget(t)
			running := make(chan struct{})
			close(running)
			z := &zombie{store: target.Shards[0], lands: lands, goOn: running}
			listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "z.sock"))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = listener.Close() }()
			go z.serve(listener)
			target.Shards[0] = listener.Addr().String()

			var fenced, lost atomic.Int64
			var kills atomic.Int32
			l := NewLoad(target, "chaos:", 1)
			stopped, err := l.Stop(t.Context(), Victim{
				Name: "zombie", Shard: 0, Sessions: 1, Shards: 1,
				Stop: func() error {
					fenced.Add(1)
					return z.stop(t.Context())
				},
				Continue: func() error {
					if of.killed {
						time.AfterFunc(10*time.Millisecond, func() { kills.Add(1) })
					}
					if of.killed && !lands {
						close(z.goOn)
						return errors.New("no such process runs")
					}
					lost.Add(1)
					close(z.goOn)
					return nil
				},
				Ready:  func(context.Context) error { return nil },
				Lost:   func() (float64, error) { return float64(lost.Load()), nil },
				Open:   func() ([]float64, error) { return []float64{1}, nil },
				Fenced: func() ([]float64, error) { return []float64{float64(fenced.Load())}, nil },
				Kills:  func() (int32, error) { return kills.Load(), nil },
			}, 20)
			if of.killed && !lands {
				if err != nil || stopped.Judged {
					t.Fatalf("a shard that was killed meanwhile: %+v: %v", stopped, err)
				}
				return
			}
			var stale *StaleError
			if errors.As(err, &stale) != lands || !lands && err != nil {
				t.Fatalf("%+v: %v", stopped, err)
			}
			if !stopped.Judged || stopped.Caught != Bursts || stopped.Learned["connection"] != stopped.Caught {
				t.Fatalf("%+v", stopped)
			}
		})
	}
}
