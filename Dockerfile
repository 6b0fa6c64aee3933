# One image for all three processes: `trilateral serve host`, `guest` or `coordinator`, and every other command.
#
#     docker build -t trilateral .
#     docker run --rm trilateral --version
#
# x86-64 only: one library (private set intersection) is published for nothing else. The kernel is compiled for plain
# x86-64 with AVX2 in functions of its own, which are used where the processor has it, so that an image built on one
# machine runs on every other: without AVX2 the same numbers come five times more slowly. See docs/kernel.md.
#
# The image contains phe, which is under the GPLv3. Whoever hands the image on does so under the GPLv3's terms; see
# docs/deployment.md.

FROM python:3.13.9-slim-bookworm AS python

FROM python AS builder

# A compiler for the kernel. Its version is whatever this release of Debian has; pins would outlive their packages.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore

WORKDIR /build

# The libraries, in a layer of its own that is rebuilt only when a locked version changes.
COPY requirements.txt requirements-build.txt ./
RUN python -m venv --without-pip /opt/trilateral \
    && pip --python /opt/trilateral/bin/python install --only-binary :all: --require-hashes -r requirements.txt \
    && pip install --only-binary :all: --require-hashes -r requirements-build.txt

# The project itself. Elsewhere the kernel is optional; in the image it is required.
COPY pyproject.toml LICENSE README.md ./
COPY src src
COPY common common
COPY host_party host_party
COPY guest_party guest_party
COPY coordinator coordinator
RUN pip wheel --no-deps --no-build-isolation --wheel-dir dist . \
    && pip --python /opt/trilateral/bin/python install --no-deps --no-index dist/*.whl \
    && /opt/trilateral/bin/python -I -c "import trilateral.common.paillier.native._kernel"


FROM python

LABEL org.opencontainers.image.title="trilateral" \
      org.opencontainers.image.description="Two organisations train one logistic regression on joint columns without showing them to each other" \
      org.opencontainers.image.licenses="Apache-2.0 AND GPL-3.0-or-later"

# Nothing in the image is written to while it runs: everything below works with a read-only root file system, a volume
# for the state, and a tmpfs at /tmp.
ENV PATH=/opt/trilateral/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp

COPY --from=builder /opt/trilateral /opt/trilateral

# A number and no name, so that Kubernetes and the like can see that it is not root. Where volumes are mounted, the
# folders are this user's, and so a new volume is: state, tables, and certificates with their key; /trial is where
# the one-shot services of docker-compose.yml have those of all three.
RUN for folder in /etc/trilateral/certs /srv/trilateral /var/lib/trilateral \
        /trial/certs/host /trial/certs/guest /trial/certs/coordinator /trial/tables/host /trial/tables/guest \
        /trial/state/host /trial/state/guest /trial/state/coordinator; do \
        install --directory --mode 0700 --owner 10001 --group 10001 "$folder" || exit 1; \
    done

USER 10001:10001
WORKDIR /tmp

EXPOSE 50050 50051 50052 9464

HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --start-interval=2s --retries=3 \
    CMD ["trilateral", "healthcheck", "--config", "/etc/trilateral/process.yaml"]

ENTRYPOINT ["trilateral"]
CMD ["--help"]
