"""LangChain: vectors find three passages, and a task puts them in order."""

import argparse
import json
from pathlib import Path

from langchain_cohere import CohereRerank
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import OpenAIEmbeddings
from openai import OpenAI

SERVER = "http://127.0.0.1:8080"
KEY = "none"

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("question", help="what the passages are to answer")
asked = parser.parse_args()

(backbone,) = OpenAI(base_url=f"{SERVER}/v1", api_key=KEY).models.list().data
# Without its own count of tokens, LangChain sends texts, which the server counts by itself.
embeddings = OpenAIEmbeddings(
    base_url=f"{SERVER}/v1", api_key=KEY, model=backbone.id, check_embedding_ctx_length=False
)
reranker = CohereRerank(base_url=SERVER, cohere_api_key=KEY, model="relevance", top_n=3)

lines = Path(__file__).with_name("passages.jsonl").read_text(encoding="utf-8").splitlines()
store = InMemoryVectorStore.from_texts([json.loads(it)["text"] for it in lines], embeddings)
found = store.similarity_search(asked.question, k=3)
for document in reranker.compress_documents(found, asked.question):
    print(f"{document.metadata['relevance_score']:.2f}  {document.page_content}")
