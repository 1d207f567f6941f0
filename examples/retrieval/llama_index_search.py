"""LlamaIndex: vectors find three passages, and a task puts them in order."""

import argparse
import json
from pathlib import Path

from llama_index.core import VectorStoreIndex
from llama_index.core.schema import TextNode
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.postprocessor.cohere_rerank import CohereRerank
from openai import OpenAI

SERVER = "http://127.0.0.1:8080"
KEY = "none"

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("question", help="what the passages are to answer")
asked = parser.parse_args()

(backbone,) = OpenAI(base_url=f"{SERVER}/v1", api_key=KEY).models.list().data
embeddings = OpenAILikeEmbedding(model_name=backbone.id, api_base=f"{SERVER}/v1", api_key=KEY)
reranker = CohereRerank(base_url=SERVER, api_key=KEY, model="relevance", top_n=3)

lines = Path(__file__).with_name("passages.jsonl").read_text(encoding="utf-8").splitlines()
nodes = [TextNode(text=json.loads(it)["text"]) for it in lines]
retriever = VectorStoreIndex(nodes, embed_model=embeddings).as_retriever(similarity_top_k=3)
found = retriever.retrieve(asked.question)
for node in reranker.postprocess_nodes(found, query_str=asked.question):
    print(f"{node.score:.2f}  {node.text}")
