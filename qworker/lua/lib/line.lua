-- What may run, by its virtual time; the name of messages without a group is ''. Those that come in their order stand in a row,
-- where the first one leaves at no cost; those that come back are in a heap.
local function new_line()
  local row, at, heap, size = {}, 1, {}, 0
  local function before(a, tag, name) return a.tag < tag or a.tag == tag and a.name < name end

  local function leave_heap()
    local first, last, hole = heap[1], heap[size], 1
    heap[size] = nil
    size = size - 1
    while size > 0 do
      local child = 2 * hole
      if child < size and before(heap[child + 1], heap[child].tag, heap[child].name) then child = child + 1 end
      if child > size or not before(heap[child], last.tag, last.name) then
        heap[hole] = last
        break
      end
      heap[hole], hole = heap[child], child
    end
    return first.name, first.tag
  end

  return {
    -- Remove the one that is next; returns its name and tag, or nil.
    take = function()
      local name = row[at]
      if not name and size == 0 then return nil end
      local tag = name and tonumber(row[at + 1])
      if size > 0 and (not name or before(heap[1], tag, name)) then return leave_heap() end
      at = at + 2
      return name, tag
    end,
    -- Add those that come after all others that were appended: {name, tag, …}, in order.
    append = function(more)
      if at > #row then
        row, at = more, 1
      else
        for i = 1, #more do row[#row + 1] = more[i] end
      end
    end,
    add = function(name, tag)
      size = size + 1
      local hole, above = size, math.floor(size / 2)
      while hole > 1 and not before(heap[above], tag, name) do
        heap[hole], hole, above = heap[above], above, math.floor(above / 2)
      end
      heap[hole] = { tag = tag, name = name }
    end,
  }
end
