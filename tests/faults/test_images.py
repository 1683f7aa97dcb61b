"""The images and cluster files of docker/, as far as they can be checked without an engine: form, schemas, and the commands that they run.

hadolint is asked where it is installed. CORPUSMILL_SCHEMAS names a folder with `compose-spec.json` of the Compose Specification and
`ray.io_rayclusters.yaml`, `ray.io_rayjobs.yaml` of KubeRay (ray-operator/config/crd/bases); without it those tests skip.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import pipeline
from manifests.manifest import Manifest
from manifests.storage import Folder
from tests.faults.cluster import cluster
from tests.pipeline.crawl import article, build, small_recipe, write_small

ROOT = Path(pipeline.__file__).parents[1]
DOCKER = ROOT / "docker"
DOCKERFILES = [DOCKER / "Dockerfile.pipeline", DOCKER / "Dockerfile.trainer"]


def instructions(path: Path) -> list[tuple[str, str]]:
    """(instruction, rest) in order, continued lines joined, comments left out."""
    text = "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_images_are_multi_stage_pinned_and_run_as_nobody_of_importance(path: Path) -> None:
    written = instructions(path)
    bases = [rest for name, rest in written if name == "FROM"]
    assert len(bases) == 2
    assert all(re.match(r"python:\d+\.\d+\.\d+-slim-\w+( AS build)?$", base) for base in bases)
    assert [rest for name, rest in written if name == "USER"] == ["1000:1000"], "a number, as runAsNonRoot needs it"
    ignored = (DOCKER / f"{path.name}.dockerignore").read_text().splitlines()
    for rest in (rest for name, rest in written if name == "COPY" and not rest.startswith("--from=")):
        *sources, target = rest.split()
        assert target.startswith("/source")
        for source in sources:
            assert (ROOT / source).exists()
            assert f"!{source}" in ignored or f"!{Path(source).parent}/*.txt" in ignored, f"{source} does not reach the builder"


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_has_nothing_to_say(path: Path) -> None:
    if (hadolint := shutil.which("hadolint")) is None:
        pytest.skip("hadolint is not installed")
    said = subprocess.run([hadolint, "--no-color", str(path)], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout) == (0, "")


def load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DOCKER / name).read_text())
    return found


def test_cluster_files_name_the_ray_of_the_lock_and_agree_with_one_another() -> None:
    version = re.search(r"^ray==(\S+)", (ROOT / "requirements" / "cluster.txt").read_text(), re.MULTILINE)
    assert version is not None
    alone, job = load("raycluster.yaml")["spec"], load("rayjob.yaml")["spec"]
    assert alone["rayVersion"] == version[1]
    for group in (job["rayClusterSpec"]["headGroupSpec"], *job["rayClusterSpec"]["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        assert pod.pop("volumes") == [{"name": "recipe", "configMap": {"name": "corpusmill-recipe"}}]
        assert pod["containers"][0].pop("volumeMounts") == [{"name": "recipe", "mountPath": "/recipes", "readOnly": True}]
    assert job["rayClusterSpec"] == alone


def test_compose_names_services_that_are_there_and_images_with_a_tag() -> None:
    services = load("compose.yaml")["services"]
    assert set(services) == {"head", "worker", "store", "buckets"}
    assert services["worker"]["deploy"]["replicas"] == 2
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= set(services)
        for other, how in service.get("depends_on", {}).items():
            assert how["condition"] != "service_healthy" or "healthcheck" in services[other], name
        if "build" in service:
            assert (DOCKER / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        else:
            assert re.search(r":[\w.-]+$", service["image"]) and not service["image"].endswith(":latest")


def schema(name: str) -> Any:
    folder = os.environ.get("CORPUSMILL_SCHEMAS")
    if folder is None or not (Path(folder) / name).is_file():
        pytest.skip(f"CORPUSMILL_SCHEMAS names no folder with {name}")
    return yaml.safe_load((Path(folder) / name).read_text())


def strict(part: Any) -> Any:
    """A schema of Kubernetes that refuses fields that it does not know, as the API server warns of them."""
    if isinstance(part, list):
        return [strict(one) for one in part]
    if not isinstance(part, dict):
        return part
    made = {name: strict(one) for name, one in part.items()}
    if isinstance(made.get("properties"), dict) and "type" in made and not made.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    return made


@pytest.mark.parametrize(
    ("file", "crd"), [("raycluster.yaml", "ray.io_rayclusters.yaml"), ("rayjob.yaml", "ray.io_rayjobs.yaml")]
)
def test_kuberay_s_schema_takes_the_cluster_files(file: str, crd: str) -> None:
    import jsonschema

    written = load(file)
    versions = {one["name"]: one["schema"]["openAPIV3Schema"] for one in schema(crd)["spec"]["versions"]}
    wanted = strict(versions[written["apiVersion"].rpartition("/")[2]])
    wanted["properties"]["metadata"] = {"type": "object"}
    jsonschema.validate(written, wanted)
    written["spec"]["headGroupSpecs"] = {}
    with pytest.raises(jsonschema.ValidationError, match="headGroupSpecs"):
        jsonschema.validate(written, wanted)


def test_the_compose_specification_takes_the_compose_file() -> None:
    import jsonschema

    wanted, written = schema("compose-spec.json"), load("compose.yaml")
    jsonschema.validate(json.loads(json.dumps(written)), wanted)
    written["services"]["head"]["comand"] = "x"
    with pytest.raises(jsonschema.ValidationError, match="comand"):
        jsonschema.validate(written, wanted)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment in which the lines of Dockerfile.pipeline that concern Python were run: its python."""
    folder = tmp_path_factory.mktemp("image")
    venv, source = folder / "venv", folder / "source"
    for name, rest in instructions(DOCKER / "Dockerfile.pipeline"):
        if name == "COPY" and not rest.startswith("--from="):
            *sources, target = rest.split()
            for one in sources:
                place = folder / target.lstrip("/")
                if (ROOT / one).is_dir():
                    shutil.copytree(ROOT / one, place, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    (place if target.endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
                    shutil.copy(ROOT / one, place)
        elif name == "RUN" and "apt-get" not in rest:
            line = (
                rest.replace("/venv", str(venv))
                .replace("/source", str(source))
                .replace("python -m venv", f"{sys.executable} -m venv")
            )
            environment = {**os.environ, "PATH": f"{venv}/bin:{os.environ['PATH']}"}
            environment.pop("PYTHONPATH", None)
            subprocess.run(["sh", "-c", line.replace("--no-cache-dir ", "")], env=environment, cwd=folder, check=True)
    return venv / "bin" / "python"


@pytest.mark.slow
def test_what_the_image_installs_runs_its_commands_and_takes_a_submitted_job(image: Path, tmp_path: Path) -> None:
    """`ray job submit --working-dir .` from this checkout, to a head with its dashboard and a worker."""
    command = next(json.loads(rest) for name, rest in instructions(DOCKER / "Dockerfile.pipeline") if name == "CMD")
    said = subprocess.run([image.with_name(command[0]), *command[1:]], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "run" in said.stdout
    recipe = write_small(
        tmp_path, {"a.jsonl": [{"text": article(str(i))} for i in range(9)]}, small_recipe(["repair"], ["exact_dedup"])
    )
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for package in ("manifests", "stages", "pipeline", "trainer"):
        shutil.copytree(ROOT / package, checkout / package, ignore=shutil.ignore_patterns("__pycache__"))
    with cluster(1, {}, python=image, dashboard=True) as started:
        submit = [str(image.with_name("ray")), "job", "submit", "--address", f"http://127.0.0.1:{started.dashboard_port}"]
        run = ["--working-dir", ".", "--", "python", "-m", "pipeline", "run", recipe.path, "--corpus"]
        good = subprocess.run(
            [*submit, *run, str(tmp_path / "corpus")],
            cwd=checkout,
            env=started.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert good.returncode == 0, good.stdout + good.stderr
        bad = subprocess.run(
            [*submit, *run, "/proc/nowhere"], cwd=checkout, env=started.environment, capture_output=True, text=True, check=False
        )
        assert bad.returncode != 0, "a run that fails is a job that failed"
        assert "error: " in bad.stdout + bad.stderr
    assert Manifest.load(Folder(tmp_path / "corpus")).digest == build(recipe, tmp_path / "here").manifest.digest
