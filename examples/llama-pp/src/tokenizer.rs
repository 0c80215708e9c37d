//! Texts to tokens and back, with the tokenizer of the model.

mod gguf;

use std::path::Path;

use candle_core::quantized::gguf_file::Content;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, context};
use serde_json::Value;
use tokenizers::Tokenizer as Hf;

use crate::failure::{Failure, Result};

/// Bytes begin here when a model has no tokenizer.
const FIRST_BYTE: u32 = 3;

/// The tokenizer of a model.
pub(crate) struct Tokenizer {
    kind: Kind,
    chat: Option<Chat>,
}

enum Kind {
    /// As tokenizer.json describes it.
    Hf(Box<Hf>),
    /// Each byte is a token: for models with random weights.
    Bytes,
}

/// How a conversation is written down.
struct Chat {
    template: String,
    bos: String,
    eos: String,
}

impl Tokenizer {
    /// tokenizer.json of a folder, with the chat template of tokenizer_config.json or chat_template.jinja.
    ///
    /// # Errors
    /// [`Failure::Model`] naming the file.
    pub(crate) fn from_folder(dir: &Path) -> Result<Tokenizer> {
        let path = dir.join("tokenizer.json");
        if !path.exists() {
            return Err(Failure::model(path, "the tokenizer is missing (hint: it belongs beside config.json)"));
        }
        let hf = Hf::from_file(&path).map_err(|error| Failure::model(&path, error))?;
        let path = dir.join("tokenizer_config.json");
        let config = match std::fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text).map_err(|error| Failure::model(&path, error))?,
            Err(_) => Value::Null,
        };
        let template = match std::fs::read_to_string(dir.join("chat_template.jinja")) {
            Ok(text) => Some(text),
            Err(_) => template_of(&config),
        };
        let special = |name: &str| {
            let token = config.get(name)?;
            Some(token.as_str().or_else(|| token.get("content")?.as_str())?.to_owned())
        };
        let (bos, eos) = (special("bos_token").unwrap_or_default(), special("eos_token").unwrap_or_default());
        let chat = template.map(|template| Chat { template, bos, eos });
        Ok(Tokenizer { kind: Kind::Hf(Box::new(hf)), chat })
    }

    /// The tokenizer inside a GGUF file.
    ///
    /// # Errors
    /// What is missing or not known.
    pub(crate) fn from_gguf(content: &Content) -> Result<Tokenizer, String> {
        let text = |key: &str| content.metadata.get(key).and_then(|value| value.to_string().ok()).cloned();
        let token = |key: &str| gguf::token(content, key).unwrap_or_default();
        let chat = text("tokenizer.chat_template").map(|template| Chat {
            template,
            bos: token("tokenizer.ggml.bos_token_id"),
            eos: token("tokenizer.ggml.eos_token_id"),
        });
        Ok(Tokenizer { kind: Kind::Hf(Box::new(gguf::tokenizer(content)?)), chat })
    }

    /// A tokenizer for models that have none: each byte is a token.
    pub(crate) fn bytes() -> Tokenizer {
        Tokenizer { kind: Kind::Bytes, chat: None }
    }

    /// The tokens of a text to continue.
    ///
    /// # Errors
    /// What the tokenizer says.
    pub(crate) fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        self.tokens(text, true)
    }

    /// The tokens of a conversation that begins with this message, up to where the answer begins.
    ///
    /// # Errors
    /// When the model has no chat template, or one that does not work.
    pub(crate) fn encode_chat(&self, message: &str) -> Result<Vec<u32>, String> {
        let Some(chat) = &self.chat else {
            return Err("--chat: the model has no chat template (hint: leave --chat out)".into());
        };
        self.tokens(
            &chat.render(message).map_err(|error| format!("--chat: the chat template fails: {error:#}"))?,
            false,
        )
    }

    fn tokens(&self, text: &str, special: bool) -> Result<Vec<u32>, String> {
        match &self.kind {
            Kind::Hf(hf) => {
                let encoding = hf.encode_fast(text, special).map_err(|error| error.to_string())?;
                Ok(encoding.get_ids().to_vec())
            }
            Kind::Bytes => Ok(text.bytes().map(|byte| u32::from(byte) + FIRST_BYTE).collect()),
        }
    }

    /// The text of tokens, special ones left out. What is no whole character at the end is U+FFFD.
    ///
    /// # Errors
    /// What the tokenizer says.
    pub(crate) fn decode(&self, tokens: &[u32]) -> Result<String, String> {
        match &self.kind {
            Kind::Hf(hf) => hf.decode(tokens, true).map_err(|error| error.to_string()),
            Kind::Bytes => {
                let byte = |token: &u32| token.checked_sub(FIRST_BYTE).and_then(|byte| u8::try_from(byte).ok());
                Ok(String::from_utf8_lossy(&tokens.iter().filter_map(byte).collect::<Vec<u8>>()).into_owned())
            }
        }
    }
}

/// The template of tokenizer_config.json: one, or the one called default.
fn template_of(config: &Value) -> Option<String> {
    let template = config.get("chat_template")?;
    let named = || template.as_array()?.iter().find(|entry| entry.get("name").is_some_and(|name| name == "default"));
    Some(template.as_str().or_else(|| named()?.get("template")?.as_str())?.to_owned())
}

impl Chat {
    fn render(&self, message: &str) -> Result<String, minijinja::Error> {
        let mut environment = Environment::new();
        // As Hugging Face renders templates.
        environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |text: String| -> Result<String, minijinja::Error> {
            Err(minijinja::Error::new(minijinja::ErrorKind::InvalidOperation, text))
        });
        environment.add_template("chat", &self.template)?;
        let messages = [context! { role => "user", content => message }];
        environment.get_template("chat")?.render(context! {
            messages, add_generation_prompt => true, bos_token => &self.bos, eos_token => &self.eos,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back() {
        let tokenizer = Tokenizer::bytes();
        let tokens = tokenizer.encode("añ").unwrap();
        assert_eq!(tokens, [100, 198, 180]);
        assert_eq!(tokenizer.decode(&tokens).unwrap(), "añ");
        assert_eq!(tokenizer.decode(&tokens[..2]).unwrap(), "a\u{fffd}");
        assert_eq!(tokenizer.decode(&[0, 400]).unwrap(), "");
        assert!(tokenizer.encode_chat("x").unwrap_err().contains("no chat template"));
    }

    #[test]
    fn a_template_is_rendered_as_hugging_face_does() {
        let template = "{% for message in messages %}\n{{ bos_token + message['role'] + ':' + message['content'].strip() }}\n\
                        {% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";
        let chat = |template: &str| Chat { template: template.into(), bos: "<s>".into(), eos: "</s>".into() };
        assert_eq!(chat(template).render(" hi ").unwrap(), "<s>user:hi\nassistant:");
        assert!(chat("{{ raise_exception('no') }}").render("").unwrap_err().to_string().contains("no"));
    }

    #[test]
    fn templates_are_found() {
        let one = serde_json::json!({ "chat_template": "a" });
        let several = serde_json::json!({ "chat_template": [{ "name": "rag", "template": "b" },
            { "name": "default", "template": "c" }] });
        assert_eq!(template_of(&one).as_deref(), Some("a"));
        assert_eq!(template_of(&several).as_deref(), Some("c"));
        assert_eq!(template_of(&Value::Null), None);
    }
}
