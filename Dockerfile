# SPDX-License-Identifier: Apache-2.0
# Targets `operator` and `dataplane` take binaries that `make` built on the host (Debian 12), from build/image.
# Targets `operator-from-source` and `dataplane-from-source` compile inside, and need a registry that serves GO_IMAGE.
# The builder without BuildKit runs every stage above the one asked for, so the stages that compile come last.
ARG BASE=debian:bookworm-slim
ARG GO_IMAGE=golang:1.26-bookworm

FROM ${BASE} AS runtime
RUN export DEBIAN_FRONTEND=noninteractive && apt-get update -q && apt-get install -y -q --no-install-recommends \
      ca-certificates ibverbs-providers libatomic1 libgrpc++1.51 libibverbs1 libisal2 libmicrohttpd12 libprometheus-cpp-core1.0 libprotobuf32 librdmacm1 libspdlog1.10 \
      libssl3 libxxhash0 \
 && apt-get clean && rm -rf /var/lib/apt/lists/* /var/cache/debconf/* /usr/share/doc/* /usr/share/man/* \
 && groupadd --gid 65532 farpool && useradd --uid 65532 --gid 65532 --home-dir / --no-create-home --shell /usr/sbin/nologin farpool

# Static, so it stands alone: no shell, no package, nothing to write to.
FROM scratch AS operator
COPY build/image/farpool-operator /farpool-operator
USER 65532:65532
ENTRYPOINT ["/farpool-operator"]

FROM runtime AS dataplane
COPY build/image/farpool-memory-node build/image/farpool-compute-shard build/image/farpool-fsck build/image/farpool-doctor /usr/local/bin/
# A library that is missing shows here, not in a pod that restarts for ever.
RUN ! ldd /usr/local/bin/farpool-* | grep 'not found'
USER 65532:65532

FROM ${GO_IMAGE} AS source
COPY hack/packages /src/hack/packages
RUN export DEBIAN_FRONTEND=noninteractive && apt-get update -q \
 && apt-get install -y -q --no-install-recommends $(awk '$1 == "build" || $1 == "test" {for (i = 2; i <= NF; i++) print $i}' /src/hack/packages)
COPY . /src
RUN make -C /src image-binaries

FROM scratch AS operator-from-source
COPY --from=source /src/build/image/farpool-operator /farpool-operator
USER 65532:65532
ENTRYPOINT ["/farpool-operator"]

FROM runtime AS dataplane-from-source
COPY --from=source /src/build/image/farpool-memory-node /src/build/image/farpool-compute-shard /src/build/image/farpool-fsck \
     /src/build/image/farpool-doctor /usr/local/bin/
USER 65532:65532
