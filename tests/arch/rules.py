"""The house rules as tables; tests/arch/arch.py checks them, docs/architecture.md explains them."""

TOP_LEVEL = {
    "CMakeLists.txt", "CMakePresets.json", "README.md", "LICENSE",
    "proto", "coordinator", "worker", "common", "kernels", "deploy", "helm", "tests", "docs",
}

# A folder may include headers of its own and of every folder in a row below its own, never of its
# own row. "main" is the side's main.cc.
LAYERS = {
    "common": [
        ["wire"],
        ["plan"],
        ["layout"],
        ["tp", "lora"],
        ["flags", "metrics", "safetensors", "model", "objects"],
        ["base"],
    ],
    "coordinator": [
        ["main"],
        ["rpc", "http", "jobs"],
        ["engine"],
        ["frontend", "scheduler", "cluster"],
        ["request"],
        ["adapters", "memory"],
        ["content"],
    ],
    "worker": [
        ["main"],
        ["runtime", "link"],
        ["model"],
        ["lora", "memory", "parallel", "weights"],
        ["ops"],
        ["device"],
    ],
}

# Leaves: they include nothing else of their side, and only these may include them.
LEAVES = {
    "coordinator/tokenizer": {"coordinator/frontend", "coordinator/rpc", "coordinator/main"},
    "coordinator/ctl": set(),
}

# Which project folders a whole side may reach beside itself (first path component).
SIDES = {
    "common": {"common"},
    "coordinator": {"coordinator", "common"},
    "worker": {"worker", "common"},
    "kernels": {"kernels"},
    "tests": {"tests", "coordinator", "worker", "common", "kernels"},
}

# Doors to the kernels: kernels/ is included by these folders alone (and by tests/).
KERNEL_USERS = {"worker/ops", "worker/parallel"}

# (name, pattern of the include, folders that may have it). tests/ may have anything; a folder name
# ending in .cc is one file. Only what has a pattern here is restricted.
EXTERNALS = [
    ("proto and gRPC", r"(.*\.pb\.h|grpc(\+\+|pp)?/.*|google/protobuf/.*)$",
     {"common/wire", "coordinator/rpc", "coordinator/cluster", "coordinator/ctl", "worker/link"}),
    ("MPI", r"mpi\.h$", {"worker/link", "worker/parallel", "worker/main.cc"}),
    ("oneDNN", r"(dnnl|oneapi/).*", {"worker/ops"}),
    ("NCCL", r"nccl.*", {"worker/parallel"}),
    ("CUDA", r"(cuda|cublas|curand|cooperative_groups|cub/|nvml).*",
     {"kernels", "worker/ops", "worker/device", "worker/parallel"}),
    ("FlashInfer", r"flashinfer/.*", {"kernels/attention/flashinfer"}),
    ("SQLite", r"sqlite3\.h$", {"coordinator/adapters", "coordinator/jobs"}),
    # Python's regular expressions: a tokenizer's pre-tokenizer, PEFT's target_modules.
    ("ICU", r"unicode/.*", {"coordinator/tokenizer", "common/lora"}),
    ("SentencePiece", r"sentencepiece.*", {"coordinator/tokenizer"}),
    ("yaml-cpp", r"yaml-cpp/.*", {"common/flags"}),
    ("CLI11", r"CLI/.*", {"common/flags"}),
    ("spdlog", r"spdlog/.*", {"common/base"}),
    ("prometheus-cpp", r"prometheus/.*", {"common/metrics"}),
    ("Boost", r"boost/.*", {"coordinator/http"}),
    ("libcurl", r"curl/.*", {"common/objects"}),
]

# Kept out of headers, since each costs every including file a second or more of compile time.
NOT_IN_HEADERS = r"(nlohmann/json\.hpp|spdlog/.*|grpcpp/grpcpp\.h)$"

MAX_FILE_LINES = 500
WARN_FILE_LINES = 300
MAX_FUNCTION_LINES = 80
MAX_KERNEL_LINES = 150
MAX_MAIN_LINES = 150

CODE_SUFFIXES = (".cc", ".h", ".cu", ".cuh", ".py", ".sh", ".cmake", ".proto")
CPP_SUFFIXES = (".cc", ".h", ".cu", ".cuh")

# Data, where the rules on text do not apply.
DATA_FOLDERS = ("tests/cases/", "tests/golden/", "deploy/demo/adapters/")

# Brackets keep this file from finding itself.
FORBIDDEN_WORDS = (
    r"\bT[O]DO\b|\bF[I]XME\b|\bX[X]X\b|\bD[I]SABLED_|\bG[T]EST_SKIP\b|"
    r"pytest\.s[k]ip|unittest\.s[k]ip|\.s[k]ipTest\("
)

THIRD_PARTY_FOLDERS = {"third_party", "thirdparty", "3rdparty", "vendor", "external", "extern"}
THIRD_PARTY_TEXT = r"(Copyright|\(c\)|©) .*\d{4}|SPDX-FileCopyrightText"
