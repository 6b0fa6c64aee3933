# One image for all three processes: `trilateral serve host`, `guest` or `coordinator`, and every other command.
#
#     docker build -t trilateral .
#     docker run --rm trilateral --version
#
# For x86-64: the kernels run on no other processor. They are compiled for plain x86-64, and only their arithmetic
# functions for AVX2 or AVX-512, which are used where the processor has it. So an image built on one machine runs on
# every other. Without either, gmpy2 takes 5 to 15 times as long. See docs/kernel.md.
#
# The image contains phe, which is under the GPLv3. If you hand the image on, the GPLv3's terms apply; see
# docs/deployment.md.

FROM python:3.13.9-slim-bookworm AS python

FROM python AS builder

# A compiler for the kernel, in the version of this Debian release: a pinned version would disappear from the archive.
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
    && /opt/trilateral/bin/python -I -c "import trilateral.common.curve25519.native._kernel, trilateral.common.paillier.native._kernel, trilateral.common.shares.native._kernel"


FROM python

LABEL org.opencontainers.image.title="trilateral" \
      org.opencontainers.image.description="Two organisations train one logistic regression on joint columns without showing them to each other" \
      org.opencontainers.image.licenses="Apache-2.0 AND GPL-3.0-or-later"

# Nothing writes to the image while it runs. Everything below works with a read-only root file system, a volume for the
# state, and a tmpfs at /tmp.
ENV PATH=/opt/trilateral/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp

COPY --from=builder /opt/trilateral /opt/trilateral

# The user is a number, so that Kubernetes and similar systems can see that it is not root. It owns the mount points of
# the volumes, so that it also owns a new volume: state, tables, and certificates with their key. Under /trial the
# one-shot services of docker-compose.yml mount those of all three organisations.
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
