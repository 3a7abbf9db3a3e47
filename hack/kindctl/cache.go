// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// cache is everything that kindctl keeps outside the repository:
//
//	tools/<name>@<version>/<name>   what was built from Go modules; never changed once there
//	bin/<name>                      links to the versions in use, for PATH
//	src/                            the small modules that the tools are built from
//	images/                         root file system and node image, so that a new dockerd starts from a file
//	kind/                           what `up` made: dockerd's socket, data and log, kubeconfigs
//	guests/                         the workers that `guests` runs: disks while they live, and what they said
type cache struct{ root string }

func openCache() (cache, error) {
	root := os.Getenv("FARPOOL_CACHE")
	if root == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return cache{}, fmt.Errorf("no home directory for the cache: %w; set FARPOOL_CACHE", err)
		}
		root = filepath.Join(home, ".cache", "farpool")
	}
	root, err := filepath.Abs(root)
	if err != nil {
		return cache{}, err
	}
	c := cache{root}
	for _, room := range []string{"tools", "bin", "src", "images", "kind", "guests"} {
		if err := os.MkdirAll(c.path(room), 0o755); err != nil {
			return c, fmt.Errorf("cache: %w; set FARPOOL_CACHE to a directory that can be written", err)
		}
	}
	return c, nil
}

func (c cache) path(elements ...string) string {
	return filepath.Join(append([]string{c.root}, elements...)...)
}

func (c cache) kubeconfig(cluster string) string {
	if cluster == defaultCluster {
		return c.path("kind", "kubeconfig")
	}
	return c.path("kind", cluster+".kubeconfig")
}

// lock keeps two runs from building or creating the same thing. The kernel drops it when the process ends, however it ends.
func (c cache) lock(ctx context.Context, what string) (release func(), err error) {
	file, err := os.OpenFile(c.path(what+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	waiting := false
	err = until(ctx, time.Hour, "lock "+file.Name()+" is held by another run", func() error {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err != nil && !waiting {
			waiting = true
			say("waiting for another run that holds %s", file.Name())
		}
		return err
	})
	if err != nil {
		file.Close()
		return nil, err
	}
	return func() { file.Close() }, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// replaceFile writes a file so that nobody ever sees half of it.
func replaceFile(path string, content []byte, mode os.FileMode) error {
	temporary := fmt.Sprintf("%s.%d", path, os.Getpid())
	if err := os.WriteFile(temporary, content, mode); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

// replaceLink points a symbolic link at a target; readers see the old one or the new one.
func replaceLink(link, target string) error {
	if at, err := os.Readlink(link); err == nil && at == target {
		return nil
	}
	temporary := fmt.Sprintf("%s.%d", link, os.Getpid())
	if err := os.Symlink(target, temporary); err != nil {
		return err
	}
	return os.Rename(temporary, link)
}
