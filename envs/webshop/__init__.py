"""WebShop (Yao et al. 2022, arXiv 2207.01206): find the product that an instruction describes, choose its options, buy.

The rules, pages and reward of the published environment (github.com/princeton-nlp/WebShop), without its web server,
its Java search engine and its language models. What stands in for what is said where it is done: `search` for Lucene,
`matching` for thefuzz and spaCy, `goals` for the unseeded draws of prices.
"""
