# Debian's Prometheus, where Prometheus' own image can't be pulled; it is called as that one is.
FROM python:3.11-slim-bookworm
RUN apt-get update \
    && apt-get install -y --no-install-recommends prometheus wget \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o nobody /prometheus
USER nobody
VOLUME /prometheus
ENTRYPOINT ["prometheus"]
