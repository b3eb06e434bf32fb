# A broker. Alone: docker run -p 127.0.0.1:8080:8080 -v seaweedq:/var/lib/seaweedq seaweedq
# In a cluster: docker-compose.yml, helm/.

# The version that all tests run on.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS build
RUN python -m venv /opt/seaweedq
ENV PATH=/opt/seaweedq/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY seaweedq seaweedq
RUN pip install '.[s3,etcd]'

FROM python:${PYTHON}-slim
COPY --from=build /opt/seaweedq /opt/seaweedq
# By number, so that Kubernetes can tell that it is not root.
RUN install -d -o 10001 -g 10001 /var/lib/seaweedq
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
