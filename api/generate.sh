#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Regenerates everything that is made from api/: protobuf and gRPC code, deep copies, apply configurations, CRDs and RBAC; and the pages in
# docs/reference, of the API and of the chart's values.
# Needs protoc and Go; the Go tools are fetched through the module proxy into bin/tools, or where FARPOOL_TOOLS says.
set -euo pipefail

cd "$(dirname "$0")/.."

controller_gen_version=v0.21.0
protoc_gen_go_version=v1.36.12
protoc_gen_go_grpc_version=v1.6.2
crd_ref_docs_version=v0.3.0
helm_docs_version=v1.14.2

tools=${FARPOOL_TOOLS:-$PWD/bin/tools}
mkdir -p "$tools"

# A tool is rebuilt when the version asked for is not the one installed.
install_tool() {
  local name=$1 package=$2 version=$3
  if [[ ! -x $tools/$name || $(cat "$tools/$name.version" 2>/dev/null) != "$version" ]]; then
    GOBIN=$tools go install "$package@$version"
    echo "$version" >"$tools/$name.version"
  fi
}
install_tool controller-gen sigs.k8s.io/controller-tools/cmd/controller-gen "$controller_gen_version"
install_tool protoc-gen-go google.golang.org/protobuf/cmd/protoc-gen-go "$protoc_gen_go_version"
install_tool protoc-gen-go-grpc google.golang.org/grpc/cmd/protoc-gen-go-grpc "$protoc_gen_go_grpc_version"
install_tool crd-ref-docs github.com/elastic/crd-ref-docs "$crd_ref_docs_version"
install_tool helm-docs github.com/norwoodj/helm-docs/cmd/helm-docs "$helm_docs_version"

command -v protoc >/dev/null || {
  echo "generate: protoc is missing: install protobuf-compiler" >&2
  exit 1
}

mkdir -p api/gen
PATH=$tools:$PATH protoc -I api/proto \
  --go_out=api/gen --go_opt=module=farpool.dev/farpool/api/gen \
  --go-grpc_out=api/gen --go-grpc_opt=module=farpool.dev/farpool/api/gen \
  api/proto/farpool/v1alpha1/*.proto

# The CRDs carry no versions of the tools, so that they change only when the types do.
"$tools/controller-gen" object:headerFile=api/boilerplate.go.txt paths=./api/v1alpha1
"$tools/controller-gen" applyconfiguration:headerFile=api/boilerplate.go.txt paths=./api/v1alpha1
"$tools/controller-gen" crd paths=./api/v1alpha1 output:crd:dir=config/crd/bases
"$tools/controller-gen" rbac:roleName=farpool-operator paths=./operator/... output:rbac:dir=config/rbac
gofmt -l -w api

# The chart carries copies: Helm reads nothing outside its directory.
cp config/crd/bases/*.yaml charts/farpool/files/crds/
sed -n '/^rules:/,$p' config/rbac/role.yaml >charts/farpool/files/rules.yaml

mkdir -p docs/reference
"$tools/crd-ref-docs" --log-level=ERROR --source-path=api/v1alpha1 --config=api/crd-ref-docs.yaml --renderer=markdown --output-path=docs/reference/api.md
# Without the blanks and the "Required: {}" that it leaves behind.
sed -i -E 's/(Required|Optional): \\\{\\\}( <br \/>)?/\1/g; s/[[:space:]]+$//' docs/reference/api.md
"$tools/helm-docs" --log-level=error --chart-search-root=charts --template-files="$PWD/api/chart.md.gotmpl" --output-file=../../docs/reference/chart.md --skip-version-footer
