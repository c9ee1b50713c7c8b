//! The messages of a chat.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

const SYSTEM: &str = "system";
const USER: &str = "user";
const ASSISTANT: &str = "assistant";

/// One message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    pub content: String,
}

/// The messages of a chat, oldest first; a system message only in front. A turn is a
/// user's message and the reply to it.
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

    /// Reads an array of `{role, content}`.
    ///
    /// # Errors
    /// Anything else; roles that there are not, or out of order.
    pub fn from_json(json: &serde_json::Value) -> Result<Transcript> {
        let chat = Transcript::deserialize(json)
            .map_err(|e| Error::input(format!("the messages cannot be read: {e}")))?;
        let mut expected = [SYSTEM, USER].as_slice();
        for (at, message) in chat.messages.iter().enumerate() {
            let role = message.role.as_str();
            if !expected.contains(&role) {
                return Err(Error::input(format!(
                    "message {} is of the role {role:?}, where {} is expected",
                    at + 1,
                    expected.join(" or ")
                )));
            }
            expected = if role == USER { &[ASSISTANT] } else { &[USER] };
        }
        Ok(chat)
    }

    /// All messages, oldest first.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Adds what the user said.
    pub fn push_user(&mut self, content: impl Into<String>) {
        self.push(USER, content.into());
    }

    /// Adds what the model answered.
    pub fn push_assistant(&mut self, content: impl Into<String>) {
        self.push(ASSISTANT, content.into());
    }

    /// Sets or replaces the system message; an empty one is none.
    pub fn set_system(&mut self, content: impl Into<String>) {
        let content = content.into();
        if self.system().is_some() {
            self.messages.remove(0);
        }
        if !content.is_empty() {
            let role = SYSTEM.to_string();
            self.messages.insert(0, Message { role, content });
        }
    }

    /// The system message.
    pub fn system(&self) -> Option<&str> {
        let first = self.messages.first().filter(|m| m.role == SYSTEM);
        first.map(|m| m.content.as_str())
    }

    /// Takes the newest message away.
    pub fn pop_last(&mut self) -> Option<Message> {
        self.messages.pop()
    }

    /// Turns so far; one without a reply counts.
    pub fn n_turns(&self) -> usize {
        self.turns().count()
    }

    /// What the user said in the newest turn.
    pub fn last_user(&self) -> Option<&str> {
        let at = self.turns().next_back()?;
        Some(&self.messages[at].content)
    }

    /// The newest reply; `None` when the newest turn has none.
    pub fn last_reply(&self) -> Option<&str> {
        let last = self.messages.last().filter(|m| m.role == ASSISTANT);
        last.map(|m| m.content.as_str())
    }

    /// Takes the newest turn away and gives what the user said in it.
    pub fn pop_turn(&mut self) -> Option<String> {
        let at = self.turns().next_back()?;
        self.messages.drain(at..).next().map(|m| m.content)
    }

    /// As templates want it: an array of `{role, content}`.
    pub fn to_json(&self) -> serde_json::Value {
        self.without_first(0)
    }

    /// As [`Transcript::to_json`], without the first `n` turns.
    pub fn without_first(&self, n: usize) -> serde_json::Value {
        let from = self.turns().nth(n).unwrap_or(self.messages.len());
        let system = self.messages.iter().filter(|m| m.role == SYSTEM);
        // A system message stands before the first turn.
        let rest = self.messages[from..].iter().filter(|m| m.role != SYSTEM);
        system
            .chain(rest)
            .map(|m| serde_json::json!({"role": m.role, "content": m.content}))
            .collect()
    }

    /// Where the turns begin.
    fn turns(&self) -> impl DoubleEndedIterator<Item = usize> {
        let messages = self.messages.iter().enumerate();
        messages.filter(|(_, m)| m.role == USER).map(|(at, _)| at)
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
    use serde_json::json;

    #[test]
    fn messages_in_order_with_one_system_message() {
        let mut chat = Transcript::new();
        chat.push_user("hi");
        chat.set_system("one");
        chat.push_assistant("yes");
        chat.set_system("two");
        assert_eq!(
            chat.to_json(),
            json!([
                {"role": "system", "content": "two"},
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": "yes"}
            ])
        );
        let saved = serde_json::to_value(&chat).unwrap();
        assert_eq!(saved, chat.to_json());
        assert_eq!(Transcript::from_json(&saved).unwrap(), chat);
        assert_eq!(chat.pop_last().map(|m| m.content), Some("yes".to_string()));
        assert_eq!(chat.messages().len(), 2);
        chat.set_system("");
        assert_eq!((chat.system(), chat.messages().len()), (None, 1));
    }

    #[test]
    fn turns_are_taken_whole_from_either_end() {
        let mut chat = Transcript::new();
        chat.set_system("s");
        for (user, reply) in [("a", "1"), ("b", "2"), ("c", "3")] {
            chat.push_user(user);
            chat.push_assistant(reply);
        }
        assert_eq!((chat.n_turns(), chat.last_user()), (3, Some("c")));
        assert_eq!(chat.last_reply(), Some("3"));
        let contents = |n| -> Vec<String> {
            let json = chat.without_first(n);
            let list = json.as_array().expect("a list");
            let texts = list.iter().filter_map(|m| m["content"].as_str());
            texts.map(String::from).collect()
        };
        assert_eq!(contents(0), ["s", "a", "1", "b", "2", "c", "3"]);
        assert_eq!(contents(2), ["s", "c", "3"]);
        assert_eq!(contents(9), ["s"]);
        assert_eq!(chat.pop_turn().as_deref(), Some("c"));
        chat.push_user("d");
        assert_eq!((chat.n_turns(), chat.last_reply()), (3, None));
        assert_eq!(chat.pop_turn().as_deref(), Some("d"));
        assert_eq!(chat.last_reply(), Some("2"));
        chat.pop_turn();
        chat.pop_turn();
        assert_eq!((chat.pop_turn(), chat.system()), (None, Some("s")));
    }

    #[test]
    fn messages_from_a_file_are_checked() {
        let good = json!([{"role": "user", "content": "a"}]);
        assert_eq!(Transcript::from_json(&good).unwrap().n_turns(), 1);
        for bad in [
            json!({"role": "user"}),
            json!([{"role": "user"}]),
            json!([{"role": "tool", "content": "x"}]),
            json!([{"role": "assistant", "content": "x"}]),
            json!([{"role": "user", "content": "x"}, {"role": "user", "content": "y"}]),
            json!([{"role": "system", "content": "x"}, {"role": "system", "content": "y"}]),
        ] {
            assert!(Transcript::from_json(&bad).is_err(), "{bad}");
        }
    }
}
