# The daemon in a container. On a machine with NVIDIA GPUs see docker-compose.gpu.yml.
FROM python:3.12-slim

# Triton compiles its launchers with a C compiler when an engine starts.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/gapless
COPY requirements requirements
# cpu or the wheel index of a CUDA version; empty: what PyPI has, which is a CUDA build.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir ${TORCH_INDEX:+--extra-index-url} ${TORCH_INDEX} -r requirements/torch.txt

COPY pyproject.toml README.md LICENSE ./
COPY daemon daemon
COPY pipelines pipelines
RUN pip install --no-cache-dir -c requirements/constraints.txt '.[nvml]'

RUN useradd --create-home --uid 1000 gapless \
    && install -d -o gapless /data /home/gapless/.cache
USER gapless
ENV TRITON_CACHE_DIR=/home/gapless/.cache/triton
WORKDIR /data
EXPOSE 9400
ENTRYPOINT ["gapless"]
CMD ["run", "/data/gapless.yaml"]
