# A broker. Alone: docker run -p 127.0.0.1:8080:8080 -v seaweedq:/var/lib/seaweedq -e SEAWEEDQ_AUTH=required seaweedq
# or SEAWEEDQ_AUTH=none, which lets in whoever reaches the port; without either it does not start, since it is no loopback.
# In a cluster: docker-compose.yml, helm/.

# The base: the Python that all tests run on. `python scripts/image_lock.py --digests` writes the digest of its tag behind it.
ARG BASE=docker.io/library/python:3.11.13-slim-bookworm

# All packages but seaweedq itself, of the versions and hashes in the lock. Only another lock, or base, builds them again.
FROM ${BASE} AS dependencies
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY deploy/build.lock deploy/requirements.lock ./
RUN python -m venv /opt/build \
    && /opt/build/bin/pip install --require-hashes --no-deps --only-binary :all: -r build.lock \
    && /opt/build/bin/pip wheel --require-hashes --no-deps --no-build-isolation -r requirements.lock -w /wheels \
    && python -m venv --without-pip /opt/seaweedq \
    && /opt/build/bin/pip --python /opt/seaweedq/bin/python install --no-index --no-deps /wheels/*.whl \
    && rm -r /wheels

FROM dependencies AS source
COPY pyproject.toml README.md LICENSE pyspark_seaweedq.py ./
COPY scripts/index_metadata.py scripts/
COPY seaweedq seaweedq
RUN /opt/build/bin/pip wheel --no-index --no-deps --no-build-isolation -w /wheels . \
    && /opt/build/bin/pip --python /opt/seaweedq/bin/python install --no-index --no-deps --prefix /opt/source /wheels/*.whl

FROM ${BASE}
# Nothing is installed in a container. The user is a number, so that Kubernetes can tell that it is not root.
RUN python -m pip uninstall --yes --root-user-action ignore pip setuptools wheel \
    && rm -rf /usr/local/lib/python3.*/ensurepip /usr/local/bin/pip* \
    && install -d -o 10001 -g 10001 /var/lib/seaweedq
COPY --from=dependencies /opt/seaweedq /opt/seaweedq
COPY --from=source /opt/source /opt/seaweedq
USER 10001:10001
ENV PATH=/opt/seaweedq/bin:$PATH PYTHONUNBUFFERED=1 \
    SEAWEEDQ_HOST=0.0.0.0 SEAWEEDQ_PORT=8080 SEAWEEDQ_DATA_DIR=/var/lib/seaweedq
WORKDIR /var/lib/seaweedq
EXPOSE 8080
# A broker listens once it has started; http.client heeds no proxy variables.
HEALTHCHECK --interval=5s --timeout=5s --start-period=60s --retries=6 \
    CMD ["python", "-c", "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', int(os.environ['SEAWEEDQ_PORT']), timeout=4); c.request('GET', '/healthz'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["seaweedq"]
CMD ["serve"]
# Last, so that another commit leaves all layers above as they are.
ARG BASE
# The commit: docker build --build-arg REVISION=$(git rev-parse HEAD)
ARG REVISION=""
LABEL org.opencontainers.image.title="seaweedq" \
      org.opencontainers.image.description="A message queue whose storage is a directory of Parquet files: a broker" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${BASE}"
