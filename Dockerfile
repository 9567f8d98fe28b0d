# `make image` builds it with the revision and the date of the commit, docker build alone without them.
#
# The image holds no NVIDIA library: libnvidia-ml.so.1 comes from the driver of the node, put in by the NVIDIA container
# toolkit (NVIDIA_VISIBLE_DEVICES, NVIDIA_DRIVER_CAPABILITIES below). libdcgm.so.4, which only --dcgm.address needs,
# is mounted, or goes in with --build-arg DCGM=FOLDER, a folder of this one with NVIDIA's packages.
# docs/image.md says what the image can do with which rights.

# The same digest of this image gives the same bytes: GO_IMAGE=golang@sha256:...
ARG GO_IMAGE=golang:1.26-bookworm
FROM ${GO_IMAGE} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG REVISION=unknown
ARG BRANCH=unknown
ARG DATE=unknown
ARG SOURCE_DATE_EPOCH=0
ARG DCGM=
RUN make REVISION="$REVISION" BRANCH="$BRANCH" DATE="$DATE"
RUN deploy/image/assemble.sh /rootfs "$DCGM"

# No shell, no package manager: the C library, the two programs, their licenses.
FROM scratch
ARG REVISION=unknown
LABEL org.opencontainers.image.title="mig-exporter" \
      org.opencontainers.image.description="Prometheus exporter for NVIDIA GPUs, GPU instances and compute instances" \
      org.opencontainers.image.source="https://github.com/mig-exporter/mig-exporter" \
      org.opencontainers.image.documentation="https://github.com/mig-exporter/mig-exporter/blob/main/docs/image.md" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="$REVISION"
COPY --from=build /rootfs /
# Not NVIDIA_MIG_MONITOR_DEVICES=all: the toolkit refuses to start a container with it that has no CAP_SYS_ADMIN. Set it
# together with that.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility \
    GOTRACEBACK=all
# Root, for the kubelet's socket, which is root's; it works with all capabilities dropped.
USER 0:0
EXPOSE 9401
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/bin/mig-exporter"]
