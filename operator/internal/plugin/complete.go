// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// completer is what kubectl runs to complete words after kubectl farpool.
const completer = `#!/bin/sh
exec kubectl farpool __complete "$@"
`

func (s *session) completeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "kubectl-complete",
		Short: "Print the script by which kubectl completes words of this plugin",
		Long: `Print the script by which kubectl completes words of this plugin.

Put it into a directory of PATH, under the name kubectl_complete-farpool, and make it executable. kubectl's own completion has to be set up.
For kubectl-farpool by itself, kubectl farpool completion prints the scripts of shells.`,
		Example: `  kubectl farpool kubectl-complete > ~/bin/kubectl_complete-farpool
  chmod +x ~/bin/kubectl_complete-farpool`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := s.Out.Write([]byte(completer))
			return err
		},
	}
}

// names completes the name of an object of a kind.
func (s *session) names(list client.ObjectList) cobra.CompletionFunc {
	return func(command *cobra.Command, before []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(before) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		c, err := s.connect()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		if err := c.List(command.Context(), list, client.InNamespace(c.namespace)); err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var found []string
		err = meta.EachListItem(list, func(object runtime.Object) error {
			named, err := meta.Accessor(object)
			if err == nil && strings.HasPrefix(named.GetName(), typed) {
				found = append(found, named.GetName())
			}
			return err
		})
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}
