// SPDX-License-Identifier: Apache-2.0

// Package lint holds the checks of this repository that no ready-made linter makes: the arrows between rooms, and habits of the
// text. They are Go tests, so `go test ./hack/lint` runs them.
package lint
