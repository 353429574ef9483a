"""Networks only; the objectives that they are trained for are in tasks."""

from lit_transformers.config import table
from lit_transformers.models.encoder import DeFormerConfig, EncoderConfig
from lit_transformers.models.encoder_decoder import EncoderDecoderConfig
from lit_transformers.models.language_model import LanguageModelConfig
from lit_transformers.models.model import ModelConfig

MODELS = table(ModelConfig, LanguageModelConfig, EncoderConfig, EncoderDecoderConfig, DeFormerConfig)

__all__ = ["MODELS", "DeFormerConfig", "EncoderConfig", "EncoderDecoderConfig", "LanguageModelConfig", "ModelConfig"]
