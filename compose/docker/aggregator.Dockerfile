# The aggregator: built from the sources, then copied alone onto a base without a
# shell, run as an ordinary user. Build it from the repository's root:
#   docker build -f compose/docker/aggregator.Dockerfile -t gapscope-aggregator:local .
# The first build takes 20 minutes of processor time: the data-frame library.
ARG BUILD_IMAGE=rust:1.88-slim-bookworm
ARG BASE_IMAGE=gcr.io/distroless/cc-debian12:nonroot

FROM ${BUILD_IMAGE} AS build
# Some of its libraries are C.
RUN command -v cc > /dev/null || (apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev)
WORKDIR /src
COPY . .
RUN cargo build --release --locked --bin gapscope-aggregator \
    && mkdir -p /out/runs && cp target/release/gapscope-aggregator /out/

FROM ${BASE_IMAGE}
COPY --from=build /out/gapscope-aggregator /usr/local/bin/gapscope-aggregator
# A volume that is mounted here begins as this folder, which is its user's.
COPY --from=build --chown=65532:65532 /out/runs /runs
USER 65532:65532
EXPOSE 7350
ENTRYPOINT ["/usr/local/bin/gapscope-aggregator"]
CMD ["--help"]
