# The server: docker build -t mnemic . (compose.yaml says how to run it)
FROM python:3.13-slim-trixie AS build
WORKDIR /build
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY src src
RUN python -m venv /opt/mnemic && /opt/mnemic/bin/pip install --no-cache-dir ".[server,postgres,encryption]"

FROM python:3.13-slim-trixie
RUN useradd --system --uid 10001 --home-dir /data --create-home mnemic
COPY --from=build /opt/mnemic /opt/mnemic
# Every address within the container, so it does not start before there is a key.
# An import is in a temporary file first, which belongs on the volume.
ENV PATH=/opt/mnemic/bin:$PATH TMPDIR=/data MNEMIC_HOST=0.0.0.0 MNEMIC_PORT=7676 MNEMIC_STORE=/data/memory.db
USER 10001
WORKDIR /data
VOLUME /data
EXPOSE 7676
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s CMD ["mnemic", "serve", "--check"]
CMD ["mnemic", "serve"]
