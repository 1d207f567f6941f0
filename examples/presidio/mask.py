"""Reads lines from standard input; Presidio prints them with the findings of a policy masked."""

import sys

import spacy
from presidio_analyzer import AnalyzerEngine, EntityRecognizer, RecognizerRegistry, RecognizerResult
from presidio_analyzer.nlp_engine import NlpArtifacts, SpacyNlpEngine
from presidio_anonymizer import AnonymizerEngine

from nunatak_client import Client, NunatakClientError

ENTITIES = {"PERSON": "PERSON", "MAIL": "EMAIL_ADDRESS", "PHONE": "PHONE_NUMBER"}
"""Presidio's name of each label that the policy masks."""


class PolicyRecognizer(EntityRecognizer):
    """Finds what a policy masks."""

    def __init__(self, client: Client, policy: str) -> None:
        self.client, self.policy = client, policy
        super().__init__([*ENTITIES.values()], name="Nunatak")

    def load(self) -> None:
        """Load nothing: the server has the tasks."""

    def analyze(
        self, text: str, entities: list[str], nlp_artifacts: NlpArtifacts
    ) -> list[RecognizerResult]:
        """Return what the policy masks; an error or a block raises."""
        verdict = self.client.judge(self.policy, text)
        if verdict.decided == "block" or verdict.mode != "enforce":
            raise RuntimeError(verdict.message or f"the policy {self.policy} gives no masks")
        (masks,) = verdict.masks or [[]]
        found = [RecognizerResult(ENTITIES[it.label], it.start, it.end, 1.0) for it in masks]
        return [it for it in found if it.entity_type in entities]


if __name__ == "__main__":
    with Client("http://127.0.0.1:8080") as client:
        registry = RecognizerRegistry([PolicyRecognizer(client, "privacy")])
        words = SpacyNlpEngine()
        words.nlp = {"en": spacy.blank("en")}  # splits words; the policy needs no model here
        analyzer = AnalyzerEngine(registry=registry, nlp_engine=words)
        for line in filter(None, map(str.strip, sys.stdin)):
            try:
                found = analyzer.analyze(line, language="en")
            except (NunatakClientError, RuntimeError) as error:
                sys.exit(f"no mask, because no verdict came: {error}")
            print(AnonymizerEngine().anonymize(line, found).text)
