"""Embeddings, classes and scores for threads."""

from __future__ import annotations

from penstock.client.embeddings import calls
from penstock.client.sync_calls import Caller
from penstock.values.embeddings import Classifications, Embeddings, Inputs, PoolingOptions, Ranked, Scores


class EmbeddingCaller(Caller):
    """Calls to models that embed or classify."""

    def embed(
        self,
        model: str,
        inputs: Inputs,
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        options: PoolingOptions | None = None,
        timeout: float | None = None,
    ) -> Embeddings:
        """Return the vector of each input.

        Args:
            model: as `list_models` names it; its task is EMBED.
            inputs: a text, or up to 2,048 texts or token ids.
            dimensions: numbers of each vector, for models whose vectors can be cut; default: all.
            normalize: whether each vector has length 1; default: as the model's files say, which is mostly yes.
            options: class, queue timeout, truncation and adapter of the request.
            timeout: seconds for the whole call, retries included; default: the client's.

        Raises:
            InvalidArgumentError: fields are wrong, or the model has another task (INVALID_REQUEST); `violations` names
                each.
            PenstockClientError: for the other reasons of `generate`.
            TypeError: an input is neither text nor token ids.
        """
        return self._run(calls.embed(model, inputs, dimensions, normalize, options), timeout)

    def classify(
        self,
        model: str,
        inputs: Inputs,
        *,
        probabilities: bool | None = None,
        options: PoolingOptions | None = None,
        timeout: float | None = None,
    ) -> Classifications:
        """Return a number of each class for each input.

        Args:
            model: as `list_models` names it; its task is CLASSIFY.
            inputs: a text, or up to 2,048 texts or token ids.
            probabilities: False gives the model's own numbers; default: as the model's files say, which is mostly yes.
            options: class, queue timeout, truncation and adapter of the request.
            timeout: seconds for the whole call, retries included; default: the client's.

        Raises:
            PenstockClientError, TypeError: for the reasons of `embed`.
        """
        return self._run(calls.classify(model, inputs, probabilities, options), timeout)

    def score(
        self,
        model: str,
        queries: Inputs,
        documents: Inputs,
        *,
        probabilities: bool | None = None,
        options: PoolingOptions | None = None,
        timeout: float | None = None,
    ) -> Scores:
        """Return how well each document fits its query.

        Args:
            model: as `list_models` names it. One that embeds gives cosines. One that classifies and has one class reads
                query and document together.
            queries: one for all documents, or one for each.
            documents: texts or token ids.
            probabilities: False gives the own numbers of a model that classifies.
            options: class, queue timeout, truncation and adapter of the request.
            timeout: seconds for the whole call, retries included; default: the client's.

        Raises:
            PenstockClientError, TypeError: for the reasons of `embed`.
        """
        return self._run(calls.score(model, queries, documents, probabilities, options), timeout)

    def rerank(
        self,
        model: str,
        query: str,
        documents: Inputs,
        *,
        top: int | None = None,
        options: PoolingOptions | None = None,
        timeout: float | None = None,
    ) -> tuple[Ranked, ...]:
        """Return the documents that fit a query best, best first.

        Args:
            model: as for `score`.
            query: text.
            documents: texts or token ids.
            top: most documents to return; default: all.
            options: class, queue timeout, truncation and adapter of the request.
            timeout: seconds for the whole call, retries included; default: the client's.

        Raises:
            PenstockClientError, TypeError: for the reasons of `embed`.
        """
        return self.score(model, query, documents, options=options, timeout=timeout).ranking(top)
