// SPDX-License-Identifier: Apache-2.0

// Command release writes a directory with everything that a registry and a user need, and publishes it:
//
//	release make -out DIRECTORY -version 0.1.0 -dataplane IMAGE.tar -packages LIST [-key KEY.pem]
//	release push -from DIRECTORY -registry registry.example/farpool
//	release serve -address 127.0.0.1:0
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, arguments []string) error {
	if len(arguments) == 0 {
		return errors.New("say what to do: make, push or serve")
	}
	flags := flag.NewFlagSet(arguments[0], flag.ExitOnError)
	switch arguments[0] {
	case "make":
		r := release{}
		flags.StringVar(&r.out, "out", "build/distribution", "directory to write; it must not be there, or be a release")
		flags.StringVar(&r.version, "version", "", "version, as in CHANGELOG.md")
		flags.StringVar(&r.dataplane, "dataplane", "", "archive of the data plane's image, as docker save writes it")
		flags.StringVar(&r.packages, "packages", "", "list of the Debian packages in that image: name, version and architecture in a line")
		flags.StringVar(&r.key, "key", "", "private key in PEM (EC or RSA, without a password) to sign with; empty: no signature")
		created := flags.Int64("created", 0, "time of the release in seconds since 1970, the same for the same sources")
		if err := flags.Parse(arguments[1:]); err != nil {
			return err
		}
		r.created = time.Unix(*created, 0).UTC()
		return r.make(ctx)
	case "push":
		p := push{}
		flags.StringVar(&p.from, "from", "build/distribution", "directory of the release")
		flags.StringVar(&p.registry, "registry", "", "registry, and a path in it if it has any")
		flags.BoolVar(&p.plain, "plain-http", false, "speak HTTP to the registry")
		timeout := flags.Duration("timeout", 30*time.Minute, "how long it may take")
		if err := flags.Parse(arguments[1:]); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, *timeout)
		defer cancel()
		return p.run(ctx)
	case "serve":
		address := flags.String("address", "127.0.0.1:0", "address to listen on; port 0: any free one")
		if err := flags.Parse(arguments[1:]); err != nil {
			return err
		}
		return serve(ctx, *address, os.Stdout)
	}
	return fmt.Errorf("%q is none of make, push and serve", arguments[0])
}
