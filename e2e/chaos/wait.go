// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Patience is how long anything may take that must happen.
const Patience = time.Minute

// finalError is one that more patience does not mend.
type finalError struct{ error }

func (e finalError) Unwrap() error { return e.error }

// Final is an error that ends Eventually.
func Final(err error) error { return finalError{err} }

// Eventually asks again until there is no error, the limit has passed, or the error is final.
func Eventually(ctx context.Context, limit time.Duration, what func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := what()
		var last finalError
		if err == nil || errors.As(err, &last) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("after %s: %w", limit, err)
		case <-tick.C:
		}
	}
}
