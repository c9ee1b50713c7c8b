//! The messages of a chat.

use serde::{Deserialize, Serialize};

/// One message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    pub content: String,
}

/// The messages of a chat, oldest first; a system message only in front.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Transcript {
    messages: Vec<Message>,
}

impl Transcript {
    /// No messages.
    pub fn new() -> Transcript {
        Transcript::default()
    }

    /// All messages, oldest first.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Adds what the user said.
    pub fn push_user(&mut self, content: impl Into<String>) {
        self.push("user", content.into());
    }

    /// Adds what the model answered.
    pub fn push_assistant(&mut self, content: impl Into<String>) {
        self.push("assistant", content.into());
    }

    /// Sets or replaces the system message.
    pub fn set_system(&mut self, content: impl Into<String>) {
        let message = Message {
            role: "system".to_string(),
            content: content.into(),
        };
        match self.messages.first_mut() {
            Some(first) if first.role == "system" => *first = message,
            _ => self.messages.insert(0, message),
        }
    }

    /// Takes the newest message away.
    pub fn pop_last(&mut self) -> Option<Message> {
        self.messages.pop()
    }

    /// As templates want it: an array of `{role, content}`.
    pub fn to_json(&self) -> serde_json::Value {
        self.messages
            .iter()
            .map(|m| serde_json::json!({"role": m.role, "content": m.content}))
            .collect()
    }

    fn push(&mut self, role: &str, content: String) {
        self.messages.push(Message {
            role: role.to_string(),
            content,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_in_order_with_one_system_message() {
        let mut chat = Transcript::new();
        chat.push_user("hi");
        chat.set_system("one");
        chat.push_assistant("yes");
        chat.set_system("two");
        assert_eq!(
            chat.to_json(),
            serde_json::json!([
                {"role": "system", "content": "two"},
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": "yes"}
            ])
        );
        assert_eq!(chat.pop_last().map(|m| m.content), Some("yes".to_string()));
        assert_eq!(chat.messages().len(), 2);
        let saved = serde_json::to_value(&chat).unwrap();
        assert_eq!(saved, chat.to_json());
        assert_eq!(serde_json::from_value::<Transcript>(saved).unwrap(), chat);
    }
}
