//! Arrays.

use super::{Builder, Expr, Made, Schema, count, empty, optional, repeat, text};
use serde_json::Value as Json;

impl Builder<'_> {
    /// `prefixItems` are all there; others follow where `items` says which.
    pub(super) fn array(&mut self, schema: &Schema, place: &str) -> Made<Expr> {
        let min = count(schema, "minItems", place)?.unwrap_or(0);
        let max = count(schema, "maxItems", place)?;
        if max.is_some_and(|max| max < min) {
            return Err(format!("{place}: maxItems is less than minItems"));
        }
        // Older schemas call the first ones `items`.
        let old = schema.get("items").filter(|items| items.is_array());
        let first = schema.get("prefixItems").or(old);
        let first = first.map_or(&[][..], |f| f.as_array().map_or(&[], Vec::as_slice));
        let others = schema.get("items").filter(|items| !items.is_array());
        let item = match others {
            Some(Json::Bool(false)) => None,
            Some(items) => Some(self.value(items, &format!("{place}/items"))?),
            None if first.is_empty() => Some(self.any()),
            None => None,
        };
        if first.is_empty() {
            return match item {
                Some(item) => Ok(self.list(item, min, max)),
                None if min > 0 => Ok(Expr::Alt(Vec::new())),
                None => Ok(text("[]")),
            };
        }
        self.tuple(first, item, (min, max), place)
    }

    fn tuple(
        &mut self,
        first: &[Json],
        item: Option<Expr>,
        (min, max): (u32, Option<u32>),
        place: &str,
    ) -> Made<Expr> {
        let n_first = u32::try_from(first.len()).unwrap_or(u32::MAX);
        if max.is_some_and(|max| max < n_first) {
            return Err(format!("{place}: maxItems is less than prefixItems has"));
        }
        let space = self.space();
        let mut parts = vec![text("["), space.clone()];
        for (i, schema) in first.iter().enumerate() {
            if i > 0 {
                parts.extend([text(","), space.clone()]);
            }
            parts.push(self.value(schema, &format!("{place}/prefixItems/{i}"))?);
        }
        let least = min.saturating_sub(n_first);
        match item {
            Some(item) => {
                let more = Expr::Seq(vec![text(","), space.clone(), item]);
                parts.push(repeat(more, least, max.map(|max| max - n_first)));
            }
            None if least > 0 => return Err(format!("{place}: minItems is more than there are")),
            None => {}
        }
        parts.extend([space, text("]")]);
        Ok(Expr::Seq(parts))
    }

    /// From `min` to `max` items.
    pub(super) fn list(&mut self, item: Expr, min: u32, max: Option<u32>) -> Expr {
        let space = self.space();
        let item = self.rule("item", item);
        let more = Expr::Seq(vec![text(","), space.clone(), item.clone()]);
        let max_more = max.map(|max| max.saturating_sub(1));
        let some = Expr::Seq(vec![
            item,
            repeat(more, min.saturating_sub(1), max_more),
            space.clone(),
        ]);
        let items = match (min, max) {
            (_, Some(0)) => empty(),
            (0, _) => optional(some),
            _ => some,
        };
        Expr::Seq(vec![text("["), space, items, text("]")])
    }
}
