//! What expressions are worth in a session.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::super::sql::{Expr, Function};
use super::super::wire::SqlError;
use super::value::Value;
use super::{MAX_SLEEP, MAX_VALUE_BYTES, Session, VariablesSchema};

/// Session variables that may be set, with what they are at first.
pub(super) const SESSION_VARIABLES: &[(&str, &str)] = &[
    ("autocommit", "1"),
    ("character_set_client", "utf8mb4"),
    ("character_set_connection", "utf8mb4"),
    ("character_set_results", "utf8mb4"),
    ("collation_connection", "utf8mb4_general_ci"),
    ("foreign_key_checks", "1"),
    ("innodb_lock_wait_timeout", "50"),
    ("interactive_timeout", "28800"),
    ("lock_wait_timeout", "86400"),
    ("max_execution_time", "0"),
    ("max_statement_time", "0"),
    ("net_read_timeout", "30"),
    ("net_write_timeout", "60"),
    ("sql_mode", ""),
    ("sql_select_limit", "18446744073709551615"),
    ("time_zone", "SYSTEM"),
    ("transaction_isolation", "REPEATABLE-READ"),
    ("tx_isolation", "REPEATABLE-READ"),
    ("unique_checks", "1"),
    ("wait_timeout", "28800"),
];

pub(super) fn unknown_variable(name: &str) -> SqlError {
    let name: String = name.chars().take(80).collect();
    SqlError::new(1193, "HY000", format!("Unknown system variable '{name}'"))
}

impl Session<'_> {
    pub(super) fn system_variable(&self, name: &str) -> Result<Value, SqlError> {
        if let Some(value) = self.session_variables.get(name) {
            return Ok(value.clone());
        }
        if let Some(value) = self.global_variable(name) {
            return Ok(value);
        }
        let (_, value) = SESSION_VARIABLES
            .iter()
            .find(|(known, _)| *known == name)
            .ok_or_else(|| unknown_variable(name))?;
        Ok(value
            .parse()
            .map_or_else(|_| Value::Text(value.as_bytes().to_vec()), Value::Int))
    }

    fn global_variable(&self, name: &str) -> Option<Value> {
        let text = |text: &str| Value::Text(text.as_bytes().to_vec());
        Some(match name {
            "hostname" => text(&self.facts.hostname),
            "port" => Value::Int(i64::from(self.facts.port)),
            "server_id" => Value::Int(i64::from(self.facts.server_id)),
            "version" => text(&self.facts.version),
            "version_comment" => text("gapscope embedded backend"),
            "max_allowed_packet" => Value::Int(16_777_216),
            "wait_timeout" => Value::Int(28_800),
            "socket" => text(""),
            "read_only" => Value::Int(i64::from(self.facts.read_only.load(Ordering::SeqCst))),
            _ => return None,
        })
    }

    /// The value, and how long the evaluation sleeps.
    pub(super) fn eval(
        &self,
        expr: &Expr,
        params: &[Value],
    ) -> Result<(Value, Duration), SqlError> {
        let mut sleep = Duration::ZERO;
        let value = self.eval_into(expr, params, &mut sleep)?;
        Ok((value, sleep))
    }

    pub(super) fn eval_into(
        &self,
        expr: &Expr,
        params: &[Value],
        sleep: &mut Duration,
    ) -> Result<Value, SqlError> {
        let text = |text: &str| Value::Text(text.as_bytes().to_vec());
        Ok(match expr {
            Expr::Null => Value::Null,
            Expr::Int(number) => Value::Int(*number),
            Expr::Float(number) => Value::Float(*number),
            Expr::Text(text) => Value::Text(text.clone()),
            Expr::Param(index) => params.get(*index).cloned().unwrap_or(Value::Null),
            Expr::UserVariable(name) => self
                .user_variables
                .get(name)
                .cloned()
                .unwrap_or(Value::Null),
            Expr::SystemVariable(name) => self.system_variable(name)?,
            Expr::Call(Function::ConnectionId, _) => Value::Int(i64::from(self.id)),
            Expr::Call(Function::Version, _) => text(&self.facts.version),
            Expr::Call(Function::Database, _) => {
                self.database.clone().map_or(Value::Null, Value::Text)
            }
            Expr::Call(Function::CurrentUser, _) => text(&format!("{}@%", self.facts.user)),
            Expr::Call(Function::Charset, arguments) => {
                for argument in arguments {
                    self.eval_into(argument, params, sleep)?;
                }
                self.system_variable("character_set_connection")?
            }
            Expr::Call(
                function @ (Function::GetLock | Function::IsUsedLock | Function::ReleaseLock),
                arguments,
            ) => {
                let mut name = Vec::new();
                if !self
                    .eval_into(&arguments[0], params, sleep)?
                    .write(&mut name)
                {
                    return Ok(Value::Null);
                }
                let store = &self.facts.store;
                match function {
                    Function::GetLock => Value::Int(i64::from(store.lock(name, self.id))),
                    Function::ReleaseLock => Value::Int(i64::from(store.unlock(&name, self.id))),
                    _ => store
                        .locked_by(&name)
                        .map_or(Value::Null, |id| Value::Int(i64::from(id))),
                }
            }
            Expr::Scalar(table, column) => self.scalar(table, column)?,
            Expr::Call(Function::Sleep, arguments) => {
                for argument in arguments {
                    let seconds = self.eval_into(argument, params, sleep)?.seconds();
                    *sleep = sleep.saturating_add(seconds).min(MAX_SLEEP);
                }
                Value::Int(0)
            }
            Expr::Call(Function::Concat, arguments) => {
                let mut joined = Vec::new();
                for argument in arguments {
                    if !self.eval_into(argument, params, sleep)?.write(&mut joined) {
                        return Ok(Value::Null);
                    }
                    if joined.len() > MAX_VALUE_BYTES {
                        let message = "Result of concat() was larger than max_allowed_packet";
                        return Err(SqlError::new(1301, "HY000", message));
                    }
                }
                Value::Text(joined)
            }
            Expr::GlobalVariables {
                schema,
                names,
                separator,
            } => self.concat_variables(schema, names, separator)?,
        })
    }

    fn concat_variables(
        &self,
        schema: &str,
        names: &[String],
        separator: &[u8],
    ) -> Result<Value, SqlError> {
        match (self.facts.variables, schema) {
            (VariablesSchema::InformationSchema, "performance_schema") => {
                let message = "Table 'performance_schema.global_variables' doesn't exist";
                return Err(SqlError::new(1146, "42S02", message));
            }
            (VariablesSchema::PerformanceSchema, "information_schema") => {
                let message = "Unknown table 'GLOBAL_VARIABLES' in information_schema";
                return Err(SqlError::new(1109, "42S02", message));
            }
            _ => {}
        }
        let mut joined = Vec::new();
        let mut found = false;
        for value in names.iter().filter_map(|name| self.global_variable(name)) {
            if found {
                joined.extend_from_slice(separator);
            }
            value.write(&mut joined);
            found = true;
        }
        // An aggregate of no rows is null.
        Ok(if found {
            Value::Text(joined)
        } else {
            Value::Null
        })
    }
}
