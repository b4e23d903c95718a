-- Whether a user may do what a script is about to do. A right that is missing stops a script midway, and what it has done
-- stays; callers that repeat such a call would do it twice.

local denied
do
local may = {}

-- An error if the user may not run a command on a key, else nil. Asked once a call and command: all keys of a kind differ
-- in their end alone.
function denied(what, command, key, ...)
  if may[command] == nil then may[command] = redis.acl_check_cmd(command, key, ...) end
  if may[command] then return nil end
  return redis.error_reply('NOPERM this user may not write ' .. what .. '; write its rules again with qworker acl')
end
end
