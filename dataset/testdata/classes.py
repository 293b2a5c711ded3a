# Writes classes.parquet with datasets 5.2.0 of Hugging Face: images of three classes with names.
import datasets
import datasets.arrow_dataset
from PIL import Image

datasets.arrow_dataset.generate_fingerprint = lambda dataset: "x"  # of the cache, which is not used
rows = {"image": [Image.new("RGB", (8, 8), (40 * i, 10, 20)) for i in range(6)], "label": [i % 3 for i in range(6)]}
features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["rose", "daisy", "tulip"])})
datasets.Dataset.from_dict(rows, features=features).to_parquet("classes.parquet")
