# docker build --build-arg REVISION="$(git rev-parse --short=12 HEAD)" -t mig-exporter .
#
# The image holds no NVIDIA library: libnvidia-ml.so.1 comes from the driver of the node, put in by the NVIDIA container
# toolkit (NVIDIA_VISIBLE_DEVICES, NVIDIA_DRIVER_CAPABILITIES below).
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG REVISION=unknown
ARG BRANCH=unknown
ARG DATE=unknown
RUN make build REVISION="$REVISION" BRANCH="$BRANCH" DATE="$DATE"

# glibc, which the driver's library needs; of the build's Debian release or a later one.
FROM debian:bookworm-slim
ARG REVISION=unknown
LABEL org.opencontainers.image.title="mig-exporter" \
      org.opencontainers.image.description="Prometheus exporter for NVIDIA GPUs, GPU instances and compute instances" \
      org.opencontainers.image.source="https://github.com/mig-exporter/mig-exporter" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="$REVISION"
COPY --from=build /src/LICENSE /usr/share/doc/mig-exporter/LICENSE
COPY --from=build /src/bin/mig-exporter /src/bin/migctl /usr/bin/
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility
# It runs as root by default: the driver shows GPU instances, and the kubelet its socket, to no one else. With --user it
# serves what is left and says what is missing; SECURITY.md has the list.
EXPOSE 9401
ENTRYPOINT ["/usr/bin/mig-exporter"]
