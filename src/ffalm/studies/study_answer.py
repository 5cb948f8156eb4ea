"""The answer of a study to a fairness target, in the words and tables of its report."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

from ffalm.targets.answer import Answer


@dataclass(frozen=True, repr=False)
class StudyAnswer(Answer):
    """The answer of a study, which notebooks show as the report does; its model is `ffalm.load_model(study.folder)`."""

    @classmethod
    def of(cls, answer: Answer) -> Self:
        """The same answer."""
        return cls(**{one.name: getattr(answer, one.name) for one in fields(Answer)})

    def explain(self) -> str:
        """The answer in sentences: how sure it is, what it costs and what it needs."""
        from ffalm.report.answer_report import sentences

        return "\n".join(sentences(self))

    def _repr_html_(self) -> str:
        from ffalm.report.answer_report import sentences, who_pays
        from ffalm.report.rendering import sentences_html

        return sentences_html(sentences(self), who_pays(self))
