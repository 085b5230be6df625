# Copyright The csi-transfer Authors.
# SPDX-License-Identifier: Apache-2.0

# For those who have docker; `make images` needs nothing but Go.
#
#   docker build --build-arg PROGRAM=csi-transfer --tag csi-transfer .
FROM golang:1.26 AS build
ARG PROGRAM=csi-transfer
ARG VERSION=unknown
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -buildid= -X main.version=$VERSION" -o /out/program ./cmd/$PROGRAM && \
    ln -s program /out/$PROGRAM

FROM scratch
# Also under its own name, as a probe calls it.
COPY --from=build /out /
USER 65532:65532
ENTRYPOINT ["/program"]
