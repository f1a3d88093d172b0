# The configuration of the container image: unprivileged, and healthy while its daemon answers. (Docker reads `Healthcheck`; podman
# and Kubernetes want the command told, docs/install.md.)
{
  created: $time,
  architecture: "amd64",
  os: "linux",
  config: {
    User: "65532:65532",
    Env: ["PATH=/usr/bin", "SIDECORE_SOCKET=/run/sidecore/control.sock"],
    Entrypoint: ["/usr/bin/sidecore"],
    Cmd: ["run"],
    WorkingDir: "/run/sidecore",
    Healthcheck: {Test: ["CMD", "/usr/bin/sidecore", "show", "daemon"], Interval: 10000000000, Timeout: 5000000000, Retries: 3},
    Labels: {
      "org.opencontainers.image.title": "sidecore",
      "org.opencontainers.image.version": $version,
      "org.opencontainers.image.revision": $commit,
      "org.opencontainers.image.created": $time,
      "org.opencontainers.image.licenses": "MIT OR Apache-2.0"
    }
  },
  rootfs: {type: "layers", diff_ids: [$unpacked]},
  history: [{created: $time, created_by: "scripts/dist"}]
}
