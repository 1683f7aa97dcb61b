"""Two kinds of English from a small grammar: simple stories, and prose of safety cases. Everything follows from the seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

NAMES = "Anna Ben Clara David Emma Finn Greta Hugo Ida Jonas Lena Max Nora Otto Paula Tom".split()
ANIMALS = "dog cat horse rabbit goose fox mouse bear duck goat owl hen".split()
PLACES = "garden forest river barn kitchen meadow harbour hill school market".split()
THINGS = "ball kite lamp basket cake bell key boat drum hat ribbon apple".split()
FEELINGS = "happy sad proud tired afraid brave hungry glad lonely calm".split()
WEATHER = "rain snow sun wind fog storm".split()
HELPERS = "mother father uncle sister brother neighbour teacher baker".split()

SYSTEMS = (
    "braking controller;collision avoidance function;pressure relief subsystem;railway interlocking;infusion pump;"
    "battery management unit;emergency shutdown logic;flight envelope protection;signal monitoring channel;dosing regulator"
).split(";")
HAZARDS = (
    "unintended acceleration;loss of containment;undetected sensor degradation;thermal runaway;delayed emergency stop;"
    "incorrect route setting;overpressure of the vessel;excessive dosage;spurious activation;common cause failure"
).split(";")
METHODS = (
    "fault tree analysis;failure modes and effects analysis;statistical testing;static verification of the software;"
    "hardware in the loop simulation;independent inspection;formal model checking;field monitoring"
).split(";")
STANDARDS = "IEC 61508;ISO 26262;EN 50128;IEC 62304;DO-178C;IEC 61511".split(";")
LEVELS = "SIL 1;SIL 2;SIL 3;SIL 4;ASIL B;ASIL C;ASIL D".split(";")
ROLES = (
    "independent safety assessor;verification engineer;system integrator;maintenance organisation;certification authority".split(
        ";"
    )
)


def story(seed: int) -> str:
    """A child, an animal, something that is lost, and an end."""
    chance = random.Random(f"story {seed}")
    child, friend = chance.sample(NAMES, 2)
    animal, thing, place, other = chance.choice(ANIMALS), chance.choice(THINGS), *chance.sample(PLACES, 2)
    feeling, weather, helper = chance.choice(FEELINGS), chance.choice(WEATHER), chance.choice(HELPERS)
    first = [
        f"Once there was a little {animal} who lived near the {place}.",
        f"{child} had a {animal} and a {thing}, and both were dear to {child}.",
        f"One day {child} went to the {place} with a {thing}.",
        f"In the {place} there lived a {animal} that was never {feeling}.",
    ]
    middle = [
        f"Then the {weather} came, and the {thing} was gone.",
        f"{child} looked by the {other}, but there was no {thing}.",
        f'"Where is my {thing}?" said {child}.',
        f'"I saw it by the {other}," said {friend}.',
        f"The {animal} ran to the {other} and found the {thing}.",
        f"{friend} was {feeling}, because the {animal} had the {thing}.",
        f"So {child} asked {friend}, and they walked to the {other} in the {weather}.",
        f"The {helper} of {friend} gave the {animal} something to eat.",
    ]
    last = [
        f"In the end {child} had the {thing} again and was {chance.choice(FEELINGS)}.",
        f"From that day on the {animal} and {child} were friends.",
        f"And the {helper} said that the {thing} was for {child} and {friend}.",
        f"They went home from the {other}, and nobody was {chance.choice(FEELINGS)} any more.",
    ]
    return " ".join([chance.choice(first), *chance.sample(middle, chance.randint(3, 6)), *chance.sample(last, 2)])


def safety_case(seed: int) -> str:
    """A claim about a system, the argument for it, its evidence, and what it rests on."""
    chance = random.Random(f"safety case {seed}")
    system, hazard, other = chance.choice(SYSTEMS), *chance.sample(HAZARDS, 2)
    method, second = chance.sample(METHODS, 2)
    standard, level, role = chance.choice(STANDARDS), chance.choice(LEVELS), chance.choice(ROLES)
    number, rate = chance.randint(1, 40), chance.randint(5, 9)
    claim = [
        f"Claim C{number}: the {system} is acceptably safe with respect to {hazard} under {standard}.",
        f"Claim C{number}: the residual risk of {hazard} in the {system} is as low as reasonably practicable.",
        f"Claim C{number}: the {system} satisfies the integrity requirements of {level} as defined in {standard}.",
    ]
    argument = [
        f"Argument: the claim is decomposed over all identified hazards of the {system}, in particular {hazard} and {other}.",
        f"The argument proceeds over the lifecycle phases that {standard} prescribes for {level}.",
        f"Each cause of {hazard} is either eliminated by design or mitigated by an independent protection layer.",
        f"Under the assumption that demands on the {system} are infrequent, {other} is bounded by the proof test interval.",
        f"Where {second} cannot be applied, equivalent confidence is obtained from {method}.",
        f"The {role} confirmed that no unmitigated contribution to {other} remains.",
    ]
    evidence = [
        f"Evidence E{number}.1: {method} demonstrates a dangerous failure rate below 1E-{rate} per hour.",
        f"Evidence E{number}.2: the {role} reviewed the results of {second} without open findings.",
        f"Evidence E{number}.3: {method} covers every safety requirement allocated to the {system}.",
        f"Evidence E{number}.4: traceability from {hazard} to its verification by {second} is complete.",
    ]
    return " ".join(
        [chance.choice(claim), *chance.sample(argument, chance.randint(2, 4)), *chance.sample(evidence, chance.randint(2, 3)),
         f"Context: {standard}, {level}; the {role} accepts the claim subject to periodic reassessment."]
    )  # fmt: skip


def write_recipe(folder: Path, stories: int, cases: int, tokenizer: str) -> Path:
    """Writes both kinds as JSONL, and a recipe of both. `tokenizer`: options of its stage; `mixture.yaml` is one of stories
    alone."""
    kinds: tuple[tuple[str, Callable[[int], str], int], ...] = (("stories", story, stories), ("safety", safety_case, cases))
    for name, text, count in kinds:
        (folder / name).mkdir(parents=True)
        lines = [json.dumps({"text": text(seed)}) + "\n" for seed in range(count)]
        (folder / name / f"{name}.jsonl").write_text("".join(lines))
    (folder / "mixture.yaml").write_text("phases:\n- weights: {stories: 1}\n")
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        f"""corpus: adaptation
seed: 3
components:
  stories: {{source: stories, format: jsonl, licence: CC0-1.0, stages: []}}
  safety: {{source: safety, format: jsonl, licence: CC0-1.0, stages: []}}
stages:
  - split: {{validation: 0.1, test: 0}}
  - tokenizer: {tokenizer}
  - shards
"""
    )
    return recipe
