# The server: docker build -t mnemic . (compose.yaml says how to run it)
FROM python:3.13-slim AS build
WORKDIR /build
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY src src
RUN python -m venv /opt/mnemic && /opt/mnemic/bin/pip install --no-cache-dir ".[server,postgres,encryption]"

FROM python:3.13-slim
RUN useradd --system --uid 10001 --home-dir /data --create-home mnemic
COPY --from=build /opt/mnemic /opt/mnemic
# Every address within the container, so it does not start before there is a key.
ENV PATH=/opt/mnemic/bin:$PATH MNEMIC_HOST=0.0.0.0 MNEMIC_PORT=7676 MNEMIC_STORE=/data/memory.db
USER 10001
WORKDIR /data
VOLUME /data
EXPOSE 7676
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:7676/live', timeout=2)"]
CMD ["mnemic", "serve"]
