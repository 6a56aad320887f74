# The agent: built from the sources, then copied alone onto a base without a shell,
# run as an ordinary user. Build it from the repository's root:
#   docker build -f compose/docker/agent.Dockerfile -t gapscope-agent:local .
ARG BUILD_IMAGE=rust:1.88-slim-bookworm
ARG BASE_IMAGE=gcr.io/distroless/cc-debian12:nonroot

FROM ${BUILD_IMAGE} AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked --bin gapscope-agent \
    && mkdir -p /out/spool && cp target/release/gapscope-agent /out/

FROM ${BASE_IMAGE}
COPY --from=build /out/gapscope-agent /usr/local/bin/gapscope-agent
# A volume that is mounted here begins as this folder, which is its user's.
COPY --from=build --chown=65532:65532 /out/spool /spool
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/gapscope-agent"]
CMD ["--help"]
